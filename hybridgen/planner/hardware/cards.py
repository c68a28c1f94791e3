"""GPUs as their datasheets give them, one entry each. No torch.

known.py makes machines of them. Rates are dense, without sparsity, in TFLOP/s: bf16 with fp32 accumulation, and fp32
without tensor cores. Memory of B300 and GB300 is that of a whole system (DGX B300: 2.1 TB, GB300 NVL72: 20.1 TB) over
its GPUs.
"""

from __future__ import annotations

from typing import NamedTuple


def maker(generation: str) -> str:
    """Whose GPUs are of a generation; "" for CPUs. Ranks of two makers cannot talk to each other."""
    return "AMD" if generation.startswith("cdna") else "NVIDIA" if generation != "cpu" else ""


class Card(NamedTuple):
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
    drivers: tuple[str, ...] = ()
    """What the driver calls it, without the maker's name; other variants of the card are other machines."""
    sustained: float = 0.0
    """What its best matrix product was measured to reach in bf16 (TFLOP/s, mag-/gpu_benchmark), as far as its power
    allows; 0 where nothing was published: then it is the generation's usual share of the peak."""
    low: tuple[float, float, float] = (0, 0, 0)
    """Rates of the tensor cores in fp8, int8 and NVFP4 (TFLOP/s); 0 where they have no such numbers."""
    bridge: tuple[str, int] | None = None
    """A faster link within a domain: a name of links.py, and how many neighbours it joins."""

    @property
    def maker(self) -> str:
        return maker(self.generation)


GB200 = Card(
    "gb200-nvl72", "GB200", "blackwell", 2500, 80, 186, 8, "nvlink5", 400, 72, 4, ("gb200",), ("GB200",),
    low=(5000, 5000, 10000),
)  # fmt: skip
GB300 = Card(
    "gb300-nvl72", "GB300", "blackwell-ultra", 2500, 80, 279, 8, "nvlink5", 800, 72, 4, ("gb300",), ("GB300",),
    low=(5000, 165, 15000),
)  # fmt: skip
B200 = Card("b200", "B200", "blackwell", 2250, 75, 180, 8, "nvlink5", 400, drivers=("B200",), low=(4500, 4500, 9000))
B300 = Card(
    "b300", "B300", "blackwell-ultra", 2250, 75, 268, 8, "nvlink5", 800, drivers=("B300", "B300 SXM6 AC"),
    low=(4500, 150, 13500),
)  # fmt: skip
H100 = Card(
    "h100", "H100 SXM", "hopper", 989, 67, 80, 3.35, "nvlink4", 400, aliases=("h100-sxm",),
    drivers=("H100 80GB HBM3",), sustained=792.1, low=(1979, 1979, 0),
)  # fmt: skip
H200 = H100._replace(
    name="h200", title="H200", memory=141, bandwidth=4.8, aliases=("h200-sxm",), drivers=("H200",), sustained=0.0
)
H800 = H100._replace(
    name="h800", title="H800 SXM", link="nvlink-400", aliases=("h800-sxm",), drivers=("H800",), sustained=0.0
)
H100_PCIE = Card(
    "h100-pcie", "H100 PCIe", "hopper", 756, 51, 80, 2, "pcie5", 400, drivers=("H100 PCIe",), sustained=499.5,
    low=(1513, 1513, 0),
)  # fmt: skip
H100_NVL = Card(
    "h100-nvl", "H100 NVL", "hopper", 835, 60, 94, 3.9, "pcie5", 400, drivers=("H100 NVL",), sustained=488.5,
    low=(1671, 1671, 0), bridge=("bridge-600", 2),
)  # fmt: skip
H200_NVL = H100_NVL._replace(
    name="h200-nvl", title="H200 NVL", memory=141, bandwidth=4.8, drivers=("H200 NVL",), sustained=0.0,
    bridge=("bridge-900", 4),
)  # fmt: skip
A100 = Card(
    "a100", "A100 SXM 80 GB", "ampere", 312, 19.5, 80, 2, "nvlink3", 200, aliases=("a100-sxm", "a100-80gb"),
    drivers=("A100-SXM4-80GB",), sustained=267.9, low=(0, 624, 0),
)  # fmt: skip
A100_40 = A100._replace(
    name="a100-40gb", title="A100 SXM 40 GB", memory=40, bandwidth=1.555, aliases=(), drivers=("A100-SXM4-40GB",)
)
A100_PCIE = A100._replace(
    name="a100-pcie", title="A100 PCIe 80 GB", bandwidth=1.935, link="pcie4", aliases=("a100-pcie-80gb",),
    drivers=("A100 80GB PCIe",), sustained=256.4,
)  # fmt: skip
A100_PCIE_40 = A100_40._replace(
    name="a100-pcie-40gb", title="A100 PCIe 40 GB", link="pcie4", drivers=("A100-PCIE-40GB",), sustained=256.4
)
A800 = A100._replace(
    name="a800", title="A800 SXM 80 GB", link="nvlink-400", aliases=("a800-sxm", "a800-80gb"),
    drivers=("A800-SXM4-80GB",),
)  # fmt: skip
H20 = Card("h20", "H20", "hopper-h20", 148, 44, 96, 4, "nvlink4", 400, drivers=("H20",), low=(296, 296, 0))
L40S = Card(
    "l40s", "L40S", "ada", 362, 91.6, 48, 0.864, "pcie4", 200, drivers=("L40S",), sustained=252, low=(733, 733, 0)
)
L40 = Card(
    "l40", "L40", "ada", 181, 90.5, 48, 0.864, "pcie4", 200, drivers=("L40",), sustained=170.3, low=(362, 362, 0)
)
L20 = Card("l20", "L20", "ada", 119.5, 59.8, 48, 0.864, "pcie4", 200, drivers=("L20",), low=(239, 239, 0))
L4 = Card("l4", "L4", "ada", 121, 30.3, 24, 0.3, "pcie4", 100, drivers=("L4",), sustained=91.4, low=(242, 242, 0))
A6000 = Card(
    "a6000", "RTX A6000", "ampere-pro", 154.8, 38.7, 48, 0.768, "pcie4", 100, aliases=("rtx-a6000",),
    drivers=("RTX A6000",), low=(0, 310, 0),
)  # fmt: skip
PRO6000 = Card(
    "rtx-pro-6000", "RTX PRO 6000", "blackwell-pro", 504, 125, 96, 1.792, "pcie5", 100, aliases=("pro-6000",),
    drivers=("RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Server Edition"),
    low=(1007, 1007, 2015),
)  # fmt: skip
RTX3090 = Card(
    "rtx3090", "RTX 3090", "geforce-ampere", 71, 35.6, 24, 0.936, "pcie4-host", 100, aliases=("3090",),
    drivers=("GeForce RTX 3090",), sustained=78, low=(0, 284, 0),
)  # fmt: skip
RTX4090 = Card(
    "rtx4090", "RTX 4090", "geforce", 165, 82.6, 24, 1.008, "pcie4-host", 100, aliases=("4090",),
    drivers=("GeForce RTX 4090",), sustained=178.5, low=(330, 660, 0),
)  # fmt: skip
RTX5090 = Card(
    "rtx5090", "RTX 5090", "geforce-blackwell", 209, 104.8, 32, 1.79, "pcie5-host", 100, aliases=("5090",),
    drivers=("GeForce RTX 5090",), low=(419, 838, 1676),
)  # fmt: skip
MI300X = Card(
    "mi300x", "MI300X", "cdna3", 1307, 163.4, 192, 5.3, "fabric3", 400, drivers=("Instinct MI300X",), sustained=758.3,
    low=(2615, 2615, 0),
)  # fmt: skip
MI355X = Card(
    "mi355x", "MI355X", "cdna4", 2517, 157.3, 288, 8, "fabric4", 400, drivers=("Instinct MI355X",),
    low=(5033, 5033, 0),
)  # fmt: skip

CARDS = tuple(card for card in list(globals().values()) if isinstance(card, Card))
"""The cards above, in that order."""
