"""Machines by name: figures of datasheets, what a driver calls them, and names that are nearly right."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybridgen.cli import text
from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.planner.hardware.cards import CARDS, Card
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.hardware.names import by_name, close, machine_of
from hybridgen.planner.hardware.rates import GENERATIONS
from tests.support import machines

DRIVERS = {
    "NVIDIA GB200": "gb200-nvl72",
    "NVIDIA GB300": "gb300-nvl72",
    "NVIDIA B200": "b200",
    "NVIDIA B300 SXM6 AC": "b300",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H200": "h200",
    "NVIDIA H200 NVL": "h200-nvl",
    "NVIDIA H800": "h800",
    "NVIDIA H20": "h20",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100",
    "A100-SXM4-80GB": "a100",
    "NVIDIA A100 80GB PCIe": "a100-pcie",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A800-SXM4-80GB": "a800",
    "NVIDIA L40S": "l40s",
    "NVIDIA L40": "l40",
    "NVIDIA L20": "l20",
    "NVIDIA L4": "l4",
    "NVIDIA RTX A6000": "a6000",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000",
    "NVIDIA GeForce RTX 3090": "rtx3090",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA GeForce RTX 5090": "rtx5090",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI355X": "mi355x",
    "cpu": "cpu",
}
"""What drivers call cards, and their machines."""
OTHERS = {
    "NVIDIA A10": 24, "NVIDIA A10G": 24, "NVIDIA A16": 16, "NVIDIA A2": 16, "NVIDIA A30": 24, "NVIDIA A40": 48,
    "NVIDIA A100-SXM-64GB": 64, "NVIDIA A100X": 80, "NVIDIA A100-SXM4-40GB MIG 1g.5gb": 5,
    "NVIDIA A100-SXM4-80GB MIG 3g.40gb": 40, "NVIDIA A800-SXM4-40GB": 40, "NVIDIA A800 40GB Active": 40,
    "NVIDIA A800 80GB PCIe": 80, "NVIDIA H100 80GB HBM3 MIG 1g.10gb": 10, "NVIDIA H100 64GB HBM2": 64,
    "NVIDIA H800 PCIe": 80, "NVIDIA H20-3e": 141, "NVIDIA GH200 120GB": 96, "NVIDIA GH200 480GB": 96,
    "NVIDIA GB10": 128, "NVIDIA L2": 24, "NVIDIA L40G": 24, "NVIDIA T4": 16, "NVIDIA T4G": 16,
    "Tesla V100-SXM2-32GB": 32, "Tesla P100-PCIE-16GB": 16, "Tesla P40": 24, "Tesla K80": 12,
    "NVIDIA RTX 6000 Ada Generation": 48, "NVIDIA RTX 5000 Ada Generation": 32, "NVIDIA RTX 4000 SFF Ada": 20,
    "NVIDIA RTX A1000": 8, "NVIDIA RTX A2000 12GB": 12, "NVIDIA RTX A4000": 16, "NVIDIA RTX A4500": 20,
    "NVIDIA RTX A5000": 24, "NVIDIA RTX A5500": 24, "Quadro RTX 6000": 24, "Quadro RTX 8000": 48,
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": 96, "NVIDIA RTX PRO 5000 Blackwell": 48,
    "NVIDIA RTX PRO 4500 Blackwell": 32, "NVIDIA RTX PRO 4000 Blackwell": 24, "NVIDIA TITAN RTX": 24,
    "NVIDIA GeForce RTX 3090 Ti": 24, "NVIDIA GeForce RTX 3080": 10, "NVIDIA GeForce RTX 3080 Laptop GPU": 16,
    "NVIDIA GeForce RTX 4090 D": 24, "NVIDIA GeForce RTX 4090 Laptop GPU": 16, "NVIDIA GeForce RTX 4080 SUPER": 16,
    "NVIDIA GeForce RTX 5090 D": 32, "NVIDIA GeForce RTX 5090 D v2": 24, "NVIDIA GeForce RTX 5090 Laptop GPU": 24,
    "NVIDIA GeForce RTX 5080": 16, "NVIDIA GeForce RTX 5070 Ti": 16, "NVIDIA GeForce RTX 2080 Ti": 11,
    "AMD Instinct MI300A": 128, "AMD Instinct MI308X": 192, "AMD Instinct MI325X": 256, "AMD Instinct MI350X": 288,
    "AMD Instinct MI250X": 64, "AMD Instinct MI210": 64, "AMD Instinct MI100": 32, "AMD Radeon PRO W7900": 48,
    "AMD Radeon RX 7900 XTX": 24, "Intel Data Center GPU Max 1550": 128,
}  # fmt: skip
"""Cards that are no machine here, as drivers call them, and their memory in GB."""


def spellings(card: str) -> set[str]:
    """Ways to type a card's name: as it is, without its maker, with other separators, without words at its end."""
    bare = card
    for word in ("NVIDIA", "AMD", "GeForce", "Tesla", "Instinct", "Generation", "GPU", "Data Center", "Radeon"):
        bare = bare.replace(word, "")
    words = bare.replace("-", " ").split()
    kept = {tuple(words), tuple(words[1:] if words[0] == "RTX" else words)}
    return {card, *(joint.join(words).lower() for words in kept for joint in ("-", "", " ", "_"))}


@pytest.mark.parametrize(("device", "name"), DRIVERS.items())
def test_a_driver_s_name_finds_its_machine(device: str, name: str) -> None:
    assert machine_of(device).name == name


def test_every_machine_has_a_driver_s_name() -> None:
    assert {*DRIVERS.values()} == {*MACHINES} and all(card.drivers for card in CARDS)


@pytest.mark.parametrize("device", OTHERS)
def test_another_card_is_no_machine(device: str) -> None:
    with pytest.raises(RequestError, match="is not a machine that the planner knows"):
        machine_of(device)


@pytest.mark.parametrize(("card", "memory"), {**OTHERS, "NVIDIA A100 40GB": 40, "NVIDIA H100 80GB": 80}.items())
def test_no_spelling_of_a_card_is_taken_for_one_with_more_memory(card: str, memory: int) -> None:
    for name in spellings(card):
        found = by_name(name)
        proposed = close(name) + ([found.name] if found is not None else [])
        assert all(MACHINES[one].memory.value <= memory * 1e9 for one in proposed), (name, proposed)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_near_miss_of_a_machine_proposes_none_with_more_memory(card: Card) -> None:
    """A name with two letters swapped, without its last, or with its memory, mounting or maker added."""
    name, sized = card.name, f"{card.name}-{card.memory:.0f}"
    swapped = {name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(len(name) - 1)}
    for typed in (name[:-1], sized, f"{sized}gb", f"{name}-sxm5", f"nvidia {name}", *swapped):
        assert all(MACHINES[one].memory.value <= card.memory * 1e9 for one in close(typed)), typed
    assert name in close(f"{sized}gb") or name.endswith("nvl72")  # whose name has a number of its own


@pytest.mark.parametrize("name", ["H100 SXM", "h100_nvl", "RTX-4090", "rtx 4090", "NVIDIA H200", "gb300", "A100 PCIe"])
def test_separators_and_makers_do_not_matter(name: str) -> None:
    assert find(name).title.split()[-1].lower() in name.lower().replace("-", " ") or name in ("gb300", "A100 PCIe")


def test_figures_agree_with_each_other() -> None:
    """Fewer bits are never slower, bf16 is faster than fp32, and NVFP4 came with Blackwell, fp8 with Hopper and Ada."""
    for card in CARDS:
        fp8, _, nvfp4 = card.low
        assert card.float32 < card.peak and 0.1 < card.bandwidth < 10 and 20 < card.memory < 300
        assert all(rate == 0 or rate >= 1.9 * card.peak for rate in (fp8, nvfp4)), card.name
        assert bool(nvfp4) == ("blackwell" in card.generation), card.name
        assert bool(fp8) == ("ampere" not in card.generation), card.name
        assert card.generation in GENERATIONS


def test_what_is_assumed_says_so_with_a_wider_range() -> None:
    for card in CARDS:
        machine, like = MACHINES[card.name], GENERATIONS[card.generation].like
        assert machine.memory.origin == f"datasheet: {card.maker}'s {card.title}"
        for rate in (machine.attention, machine.matmul):
            assert rate.origin.startswith("assumed: as " + like if like else "fitted"), card.name
        assert not like or machine.error.value > MACHINES["h100"].error.value


def test_the_list_of_machines_is_readable_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "width", lambda: 80)
    assert call(["hardware"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(MACHINES) + 1 and max(map(len, lines)) <= 80
    assert all(line.split()[0] in MACHINES for line in lines[1:])


def test_the_page_of_machines_and_settings_is_what_is_declared() -> None:
    assert machines.DOCUMENT.read_text(encoding="utf-8") == machines.document(), "python -m tests.support.machines"


def test_a_card_that_is_not_known_is_calibrated_on_the_base_of_one_that_is_like_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("hybridgen.engine.machine.device_of", lambda device: "cuda")
    monkeypatch.setattr("hybridgen.engine.machine.device_name", lambda device: "NVIDIA GeForce RTX 4090 D")
    measuring = SimpleNamespace(Settings=lambda *_: None, run=lambda _: {"attention": (9e13, "measured here")})
    monkeypatch.setitem(sys.modules, "hybridgen.engine.calibrate", measuring)  # which needs torch
    words = ["calibrate", "--out", str(tmp_path / "mine.yaml")]
    assert call(words) == 2
    assert "NVIDIA GeForce RTX 4090 D is not a machine that the planner knows" in (told := capsys.readouterr().err)
    assert "nearest: --base NAME" in told
    assert call([*words, "--base", "rtx4080"]) == 2 and "--base rtx4080: " in capsys.readouterr().err
    assert call([*words, "--base", "rtx4090"]) == 0
    found = find(str(tmp_path / "mine.yaml"))
    assert (found.attention.value, found.memory.value) == (9e13, 24e9)
