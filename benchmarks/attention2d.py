"""Ways to hide attention2d's exchanges, against the plain path: two CPU ranks, one layer's self-attention.

`python -m benchmarks.attention2d --out benchmarks/results/attention2d-cpu.md` (2 minutes). Each way computes the same:
projections of Q, K and V, attention over both ranks' tokens, the output projection. They take turns; a time ends with
the slower rank, and ratios are taken turn by turn.

plain          as strategies/attention2d/run.py does it
while Q        K/V is gathered while Q is projected (rows)
while own      K/V is gathered while the rank attends its own block; the rest is merged in (rows)
reduce-scatter the partial outputs, weighted by their share of the softmax, are summed in the exchange (columns)
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from benchmarks.turns import Contender, Match, play
from hybridgen.distributed.attention import Merge, attend
from hybridgen.distributed.comm import Group, Traffic
from hybridgen.distributed.processes import RankContext
from hybridgen.distributed.rendezvous import init_process_group
from hybridgen.plan.kernels import select
from hybridgen.strategies.attention2d.run import attention2d

# The names before torch 2.13 follow.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
TURNS = 11
HEADS, HEAD_DIM = 8, 64


class Ways:
    """The ways: tokens [1, s, D] of this rank -> [1, s, D]. Weights are the same on both ranks."""

    def __init__(self, dtype: torch.dtype, rank: int) -> None:
        self.group = Group("attention2d", (0, 1), rank, Traffic(), dist.group.WORLD)
        self.alone = Group("attention2d", (rank,), 0, Traffic())
        self.kernel = select("auto", "cpu", str(dtype).removeprefix("torch."), HEAD_DIM, merged=True)
        generator, width = torch.Generator().manual_seed(1), HEADS * HEAD_DIM
        self.weights = torch.randn(4, width, width, generator=generator).mul_(width**-0.5).to(dtype)

    def project(self, x: Tensor, index: int) -> Tensor:
        return torch.unflatten(F.linear(x, self.weights[index]), 2, (HEADS, HEAD_DIM))

    def close(self, out: Tensor) -> Tensor:
        return F.linear(out.flatten(2), self.weights[3])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, _: object = None) -> tuple[Tensor, Tensor]:
        return attend(self.kernel, q, k, v)

    def plain(self, x: Tensor, query: Group, key: Group) -> Tensor:
        q, k, v = (self.project(x, i) for i in range(3))
        return self.close(attention2d(q, k, v, query, key, [0, 1], self.attend, 1))

    def plain_rows(self, x: Tensor) -> Tensor:
        return self.plain(x, self.alone, self.group)

    def plain_columns(self, x: Tensor) -> Tensor:
        return self.plain(x, self.group, self.alone)

    def start_gather(self, k: Tensor, v: Tensor) -> tuple[Tensor, dist.Work]:
        own = torch.cat([k, v], -1)
        both = own.new_empty(2, *own.shape[1:])
        work = _all_gather(both, own, async_op=True)
        assert work is not None
        return both, work

    def while_q(self, x: Tensor) -> Tensor:
        both, work = self.start_gather(self.project(x, 1), self.project(x, 2))
        q = self.project(x, 0)
        work.wait()
        k, v = both.flatten(0, 1).unsqueeze(0).chunk(2, -1)
        return self.close(self.attend(q, k, v)[0])

    def while_own(self, x: Tensor) -> Tensor:
        k, v = self.project(x, 1), self.project(x, 2)
        both, work = self.start_gather(k, v)
        q = self.project(x, 0)
        merge = Merge(q)
        merge.add(*self.attend(q, k, v))
        work.wait()
        merge.add(*self.attend(q, *both[1 - self.group.rank].unsqueeze(0).chunk(2, -1)))
        return self.close(merge.result(q.dtype))

    def reduce_scatter(self, x: Tensor) -> Tensor:
        q, k, v = (self.project(x, i) for i in range(3))
        every = self.group.all_gather(q)  # [2, 1, s, H, D]
        out, lse = self.attend(every.flatten(0, 2).unsqueeze(0), k, v)
        lses = self.group.all_gather(lse)  # [2, 1, 2 s, H, 1]
        weighted = (out * (lse - torch.logsumexp(lses, 0)).exp()).squeeze(0).contiguous()  # fp32
        own = weighted.new_empty(x.shape[1], *weighted.shape[1:])
        _reduce_scatter(own, weighted)
        return self.close(own.unsqueeze(0).to(q.dtype))


PAIRS = [
    ("2x1, K/V gathered while Q is projected", "plain_rows", "while_q"),
    ("2x1, K/V gathered while the own block is attended", "plain_rows", "while_own"),
    ("1x2, combined by reduce-scatter", "plain_columns", "reduce_scatter"),
]


def match(context: RankContext, tokens: int, dtype: torch.dtype, plain: str, other: str) -> Match:
    """Two of the ways on this rank's half of the tokens."""
    init_process_group(context, torch.device("cpu"))
    ways = Ways(dtype, context.rank)
    generator = torch.Generator().manual_seed(2 + context.rank)
    x = torch.randn(1, tokens // 2, HEADS * HEAD_DIM, generator=generator).to(dtype)

    def contender(name: str) -> Contender:
        return lambda: partial(getattr(ways, name), x)

    return Match(contender(plain), contender(other), (True, True), difference)


def difference(a: Tensor, b: Tensor) -> list[float]:
    return [float((a.double() - b.double()).norm() / a.double().norm())]


HEAD = f"""\
Written by benchmarks/attention2d.py: medians of {TURNS} turns; two CPU ranks of one thread, {HEADS} heads of \
{HEAD_DIM}.
A ratio above 1 means that the change is faster than the plain path.

| tokens | dtype | change | plain, s | changed, s | ratio | lowest - highest | difference |
|---|---|---|---|---|---|---|---|"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 6144])
    parser.add_argument("--out", type=Path, help="file to write the table to")
    args = parser.parse_args()
    torch.set_num_threads(1)  # before the fork: a pool of threads would not survive it
    lines = [HEAD]
    print(HEAD, flush=True)
    for tokens in args.tokens:
        for dtype in (torch.float32, torch.bfloat16):
            for what, plain, other in PAIRS:
                result = play(partial(match, tokens=tokens, dtype=dtype, plain=plain, other=other), TURNS)
                name = str(dtype).removeprefix("torch.")
                row = f"| {tokens} | {name} | {what} | {result.times} | {result.span} | {result.judged[0]:.0e} |"
                lines.append(row)
                print(row, flush=True)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
