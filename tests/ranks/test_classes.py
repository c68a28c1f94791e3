"""Every class of checkpoint: one rank is the stock pipeline bit for bit, and every exact strategy equals it."""

from __future__ import annotations

import pytest
import torch

from hybridgen.strategies.registry import Degrees
from tests.support.checkpoints import Case, run_case, stock_latents

LIMIT = 1e-5

CASES = [
    Case("wan2.1-t2v", steps=2),
    Case("cosmos3", images=1, size="80x48", steps=2),
    Case("wan2.1-i2v", 1, frames=9, steps=2),
    Case("wan2.1-flf2v", 2, frames=9, steps=2),
    Case("wan2.2-i2v", 1, frames=9, guidance_2=3.0),  # the third step is the second expert's
    Case("wan2.2-i2v", 2, frames=9, guidance_2=3.0),
    Case("wan2.2-ti2v", frames=9, steps=2),
    Case("wan2.2-ti2v", 1, frames=9, steps=2),
    Case("cosmos2-t2i", frames=1, steps=2),
    Case("cosmos2-v2w", images=1, frames=5, steps=2),
    Case("cosmos2.5", frames=9, steps=2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_rank_is_the_stock_pipeline_bit_for_bit(case: Case) -> None:
    assert torch.equal(run_case(case, case.plan()).latents, stock_latents(case))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_composition_equals_one_process_and_sends_what_is_declared(case: Case) -> None:
    outcome = run_case(case, case.plan(Degrees(cfg=2, ulysses=2)))
    assert outcome.error(stock_latents(case)) <= LIMIT
    assert outcome.sent == outcome.declared
