"""The machines known by name. No torch.

What is fitted is fitted by benchmarks/planner_accuracy.py --calibrate to rows of benchmarks/data/published_latency.csv.
Datasheet rates are dense bf16 with fp32 accumulation. A GPU without a published run gets the shares of its peak that
a fitted one of its kind reaches; such shares are assumptions, and say so.
"""

from __future__ import annotations

from dataclasses import replace

from hybridgen.errors import RequestError
from hybridgen.planner.hardware.constants import Constant, Hardware, Link
from hybridgen.planner.hardware.origins import GB, MICRO, TERA, assumed, datasheet, fitted, network, nvlink, pcie, share

VISUALGEN = "TensorRT-LLM VisualGen on GB200 NVL72"


NVLINK5 = Link(
    "NVLink 5",
    fitted(215 * GB, f"the 72-GPU denoise time and the all-to-all table ({VISUALGEN}); datasheet: 900 GB/s"),
    fitted(40 * MICRO, f"the 72-GPU denoise time and the all-to-all table ({VISUALGEN})"),
    fitted(520 * MICRO, f"the VAE's width curve ({VISUALGEN})"),
)


GB200 = Hardware(
    name="gb200-nvl72",
    title="GB200",
    memory=datasheet(186 * GB),
    reserve=assumed(2 * GB, "CUDA context and NCCL buffers"),
    attention=fitted(1415 * TERA, f"the one-GPU denoise time and the published kernel split ({VISUALGEN})"),
    matmul=fitted(1869 * TERA, f"the one-GPU denoise time and the published kernel split ({VISUALGEN})"),
    float32=assumed(0.1, "kernels without tensor cores"),
    bandwidth=datasheet(8 * TERA),
    launch=assumed(3 * MICRO, "compiled, or replayed as a graph"),
    step=assumed(1e-3, "scheduler and time embedding"),
    ring=fitted(740 * MICRO, f"ring 9 on 72 GPUs ({VISUALGEN})"),
    slowdown=fitted(0.052, f"the 2-GPU denoise time, where almost nothing is sent ({VISUALGEN})"),
    decoder=fitted(215 * TERA, f"the VAE's decode time on one GPU ({VISUALGEN})"),
    pixels=fitted(1.1e-3, f"the VAE's width curve ({VISUALGEN})"),
    fixed=fitted(1.0, f"end-to-end less denoise and VAE time ({VISUALGEN})"),
    writing=assumed(230e6, "720p at 250 frames a second, the rest of the published fixed time"),
    inside=NVLINK5,
    outside=network("400 Gb/s network", 50 * GB),
    shared_bus=False,
    domain=72,
    per_node=4,
    error=Constant(0.05, "mean error on published rows: docs/planner-accuracy.md"),
    anchored=Constant(0.05, "mean error on published rows: docs/planner-accuracy.md"),
)

UNANCHORED = assumed(0.2, "published one-GPU times of one setup differ by 20%")
ANCHORED = Constant(0.08, "mean error on NVLink machines given their one-GPU time: docs/planner-accuracy.md")

B200 = replace(
    GB200,
    name="b200",
    title="B200",
    memory=datasheet(180 * GB),
    attention=GB200.attention.times(0.9224, "scaled by the published one-GPU times, 370.8 against 342.04 s"),
    matmul=GB200.matmul.times(0.9224, "scaled by the published one-GPU times, 370.8 against 342.04 s"),
    decoder=GB200.decoder.times(0.9, "scaled by the datasheets' peaks"),
    domain=8,
    per_node=8,
    error=assumed(0.1, "one published one-GPU time"),
    anchored=ANCHORED,
)

EAGER = "the published one-GPU time of Wan 2.1 14B at 720p (Wan repository, eager PyTorch)"

H100 = replace(
    GB200,
    name="h100",
    title="H100 SXM",
    memory=datasheet(80 * GB),
    attention=fitted(330 * TERA, EAGER),
    matmul=fitted(560 * TERA, EAGER),
    float32=assumed(0.07, "67 of 989 TFLOP/s on the datasheet"),
    bandwidth=datasheet(3.35 * TERA),
    launch=assumed(5 * MICRO, "eager PyTorch"),
    step=assumed(5e-3, "eager PyTorch"),
    ring=assumed(740 * MICRO, "as GB200"),
    slowdown=assumed(0.02, "published 2-GPU times leave no more"),
    decoder=share(989 * TERA, 0.086, "GB200"),
    inside=nvlink("NVLink 4", 450 * GB),
    domain=8,
    per_node=8,
    error=UNANCHORED,
    anchored=ANCHORED,
)

H200 = replace(
    H100,
    name="h200",
    title="H200",
    memory=datasheet(141 * GB),
    attention=H100.attention.times(1, "H200 computes as H100 does"),
    matmul=H100.matmul.times(1, "H200 computes as H100 does"),
    bandwidth=datasheet(4.8 * TERA),
)

H100_PCIE = replace(
    H100,
    name="h100-pcie",
    title="H100 PCIe",
    attention=share(756 * TERA, 0.33, "H100 SXM"),
    matmul=share(756 * TERA, 0.57, "H100 SXM"),
    bandwidth=datasheet(2 * TERA),
    decoder=share(756 * TERA, 0.086, "GB200"),
    inside=pcie("PCIe 5", 32 * GB),
    shared_bus=True,
    anchored=assumed(0.25, "PCIe boxes differ"),
)

A100 = replace(
    H100,
    name="a100",
    title="A100 SXM 80 GB",
    attention=fitted(195 * TERA, EAGER),
    matmul=fitted(235 * TERA, EAGER),
    float32=assumed(0.06, "19.5 of 312 TFLOP/s on the datasheet"),
    bandwidth=datasheet(2.0 * TERA),
    decoder=share(312 * TERA, 0.086, "GB200"),
    inside=nvlink("NVLink 3", 300 * GB),
    outside=network("200 Gb/s network", 25 * GB),
)

A100_40 = replace(
    A100,
    name="a100-40gb",
    title="A100 SXM 40 GB",
    memory=datasheet(40 * GB),
    bandwidth=datasheet(1.555 * TERA),
)

H20 = replace(
    H100,
    name="h20",
    title="H20",
    memory=datasheet(96 * GB),
    attention=fitted(93 * TERA, EAGER),
    matmul=fitted(105 * TERA, EAGER),
    float32=assumed(0.3, "44 of 148 TFLOP/s on the datasheet"),
    bandwidth=datasheet(4.0 * TERA),
    decoder=share(148 * TERA, 0.086, "GB200"),
)

L40S = replace(
    H100,
    name="l40s",
    title="L40S",
    memory=datasheet(48 * GB),
    attention=share(362 * TERA, 0.5, "RTX 4090, less for its lower clocks"),
    matmul=share(362 * TERA, 0.6, "RTX 4090, less for its lower clocks"),
    float32=assumed(0.25, "91.6 of 362 TFLOP/s on the datasheet"),
    bandwidth=datasheet(0.864 * TERA),
    decoder=share(362 * TERA, 0.086, "GB200"),
    inside=pcie("PCIe 4", 16 * GB),
    outside=network("200 Gb/s network", 25 * GB),
    shared_bus=True,
    anchored=assumed(0.25, "PCIe boxes differ"),
)

L20 = replace(
    L40S,
    name="l20",
    title="L20",
    attention=share(119.5 * TERA, 0.5, "L40S"),
    matmul=share(119.5 * TERA, 0.6, "L40S"),
    float32=assumed(0.5, "59.8 of 119.5 TFLOP/s on the datasheet"),
    decoder=share(119.5 * TERA, 0.086, "GB200"),
)

RTX4090 = replace(
    L40S,
    name="rtx4090",
    title="RTX 4090",
    memory=datasheet(24 * GB),
    reserve=assumed(1 * GB, "CUDA context and NCCL buffers"),
    attention=fitted(115 * TERA, "the published one-GPU time of Wan 2.1 1.3B at 480p (Wan repository)"),
    matmul=fitted(130 * TERA, "the published one-GPU time of Wan 2.1 1.3B at 480p (Wan repository)"),
    float32=assumed(0.5, "82.6 of 165 TFLOP/s on the datasheet"),
    bandwidth=datasheet(1.008 * TERA),
    decoder=share(165 * TERA, 0.086, "GB200"),
    inside=pcie("PCIe 4, no peer to peer", 10 * GB, "a third of the bus, through the host's memory"),
    outside=network("100 Gb/s network", 12.5 * GB),
)

RTX3090 = replace(
    RTX4090,
    name="rtx3090",
    title="RTX 3090",
    attention=share(71 * TERA, 0.7, "RTX 4090"),
    matmul=share(71 * TERA, 0.79, "RTX 4090"),
    float32=assumed(0.5, "35.6 of 71 TFLOP/s on the datasheet"),
    bandwidth=datasheet(0.936 * TERA),
    decoder=share(71 * TERA, 0.086, "GB200"),
)

RTX5090 = replace(
    RTX4090,
    name="rtx5090",
    title="RTX 5090",
    memory=datasheet(32 * GB),
    attention=share(209 * TERA, 0.7, "RTX 4090"),
    matmul=share(209 * TERA, 0.79, "RTX 4090"),
    bandwidth=datasheet(1.79 * TERA),
    decoder=share(209 * TERA, 0.086, "GB200"),
    inside=pcie("PCIe 5, no peer to peer", 20 * GB, "a third of the bus, through the host's memory"),
)

GUESS = "one core of a recent server; calibrate this machine instead"
LOOPBACK = Link("gloo", assumed(1.5 * GB, GUESS), assumed(300 * MICRO, GUESS), assumed(300 * MICRO, GUESS))

CPU = Hardware(
    name="cpu",
    title="CPU core",
    memory=Constant(0, "the machine's own"),
    reserve=Constant(0.029 * GB, "measured: what a rank of the demo holds beside its tensors"),
    attention=assumed(40 * GB, GUESS),
    matmul=assumed(60 * GB, GUESS),
    float32=Constant(1.0, "assumed: these rates are for fp32, and bf16 is no faster on most CPUs"),
    bandwidth=assumed(8 * GB, GUESS),
    launch=assumed(8 * MICRO, GUESS),
    step=assumed(1e-3, GUESS),
    ring=assumed(500 * MICRO, GUESS),
    slowdown=assumed(0.05, GUESS),
    decoder=assumed(50 * GB, GUESS),
    pixels=assumed(1e-4, GUESS),
    fixed=assumed(0.3, GUESS),
    writing=assumed(20e6, GUESS),
    inside=LOOPBACK,
    outside=Link("TCP", assumed(1 * GB, GUESS), assumed(500 * MICRO, GUESS), assumed(500 * MICRO, GUESS)),
    shared_bus=True,  # the cores send
    domain=64,
    per_node=64,
    error=assumed(0.5, "not calibrated"),
    anchored=assumed(0.25, "not calibrated"),
)

MACHINES = {machine.name: machine for machine in list(globals().values()) if isinstance(machine, Hardware)}
"""The machines above by name, in that order."""
DEFAULT = GB200.name
"""The machine to plan for if none is named."""
ALIASES = {
    "gb200": "gb200-nvl72",
    "h100-sxm": "h100",
    "a100-sxm": "a100",
    "a100-80gb": "a100",
    "rtx-3090": "rtx3090",
    "3090": "rtx3090",
    "4090": "rtx4090",
    "rtx-4090": "rtx4090",
    "rtx-5090": "rtx5090",
    "5090": "rtx5090",
}


APART = ("pcie", "40gb")
"""Parts of names that the driver's name must have, too."""


def machine_of(device: str) -> Hardware:
    """The machine with this device: "cpu", or what the driver calls a GPU. Raises RequestError (unknown-hardware)."""
    words = device.lower().replace(" ", "").replace("-", "")
    for name in sorted(MACHINES, key=len, reverse=True):
        kind, *rest = name.split("-")
        if kind in words and all(part in words for part in rest if part in APART):
            return MACHINES[name]
    problem, instead = (
        f"{device} is not a machine that the planner knows",
        "--hardware NAME or FILE.yaml, or the degrees",
    )
    raise RequestError("unknown-hardware", "", None, problem, instead)
