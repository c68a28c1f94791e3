"""GPUs as their datasheets give them, one entry each. No torch.

known.py makes machines of them. Rates are dense, without sparsity, in TFLOP/s: bf16 with fp32 accumulation, and fp32
without tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Card:
    """A GPU and how it is usually joined with others."""

    name: str
    title: str
    generation: str
    """A name of rates.py."""
    peak: float
    """Rate of the tensor cores in bf16 (TFLOP/s)."""
    float32: float
    """Rate in fp32 without tensor cores (TFLOP/s)."""
    memory: float
    """Memory (GB)."""
    bandwidth: float
    """Bandwidth of the memory (TB/s)."""
    link: str
    """What joins the GPUs of a domain: a name of links.py."""
    network: float
    """Rate of one GPU's network adapter (Gb/s)."""
    domain: int = 8
    """GPUs that the link joins."""
    per_node: int = 8
    """GPUs of one host."""
    aliases: tuple[str, ...] = ()


GB200 = Card("gb200-nvl72", "GB200", "blackwell", 2500, 80, 186, 8, "nvlink5", 400, 72, 4, ("gb200",))
B200 = Card("b200", "B200", "blackwell", 2250, 75, 180, 8, "nvlink5", 400)
H100 = Card("h100", "H100 SXM", "hopper", 989, 67, 80, 3.35, "nvlink4", 400, aliases=("h100-sxm",))
H200 = replace(H100, name="h200", title="H200", memory=141, bandwidth=4.8, aliases=())
H100_PCIE = Card("h100-pcie", "H100 PCIe", "hopper", 756, 51, 80, 2, "pcie5", 400)
A100 = Card("a100", "A100 SXM 80 GB", "ampere", 312, 19.5, 80, 2, "nvlink3", 200, aliases=("a100-sxm", "a100-80gb"))
A100_40 = replace(A100, name="a100-40gb", title="A100 SXM 40 GB", memory=40, bandwidth=1.555, aliases=())
H20 = Card("h20", "H20", "hopper-h20", 148, 44, 96, 4, "nvlink4", 400)
L40S = Card("l40s", "L40S", "ada", 362, 91.6, 48, 0.864, "pcie4", 200)
L40 = Card("l40", "L40", "ada", 181, 90.5, 48, 0.864, "pcie4", 200)
L20 = Card("l20", "L20", "ada", 119.5, 59.8, 48, 0.864, "pcie4", 200)
RTX4090 = Card("rtx4090", "RTX 4090", "geforce", 165, 82.6, 24, 1.008, "pcie4-host", 100, aliases=("rtx-4090", "4090"))
RTX3090 = Card("rtx3090", "RTX 3090", "geforce", 71, 35.6, 24, 0.936, "pcie4-host", 100, aliases=("rtx-3090", "3090"))
RTX5090 = Card("rtx5090", "RTX 5090", "geforce", 209, 104.8, 32, 1.79, "pcie5-host", 100, aliases=("rtx-5090", "5090"))

CARDS = tuple(card for card in list(globals().values()) if isinstance(card, Card))
"""The cards above, in that order."""
