"""What is fitted to published times, one value for each thing that machines share. No torch.

`python -m benchmarks.planner_accuracy --fit` finds these values from all rows of benchmarks/data/published_latency.csv,
and a test holds them to it. docs/planner-accuracy.md says how well they predict sources that they were not fitted to.
"""

from __future__ import annotations

FITTED = {
    # Attention: share of the published rate of the generation's kernel alone that it reaches inside a pipeline.
    "attention.ampere": 0.9535,
    "attention.hopper": 1.033,
    "attention.hopper-h20": 0.9801,
    "attention.blackwell": 0.8017,
    "attention.geforce": 1.053,
    # Matrix products: share of the best one of the card.
    "matmul.ampere": 0.918,
    "matmul.hopper": 1.022,
    "matmul.hopper-h20": 0.9479,
    "matmul.blackwell": 0.9552,
    "matmul.geforce": 0.9891,
    # Norms, rope, residuals, activations: times their bytes alone.
    "passes": 3.973,
    "eager": 2.374,
    # Standard deviation of the speeds of GPUs that work together.
    "slowdown": 0.03454,
    # What computing loses for every further GPU at work on the same host.
    "crowd": 0.005763,
    # The VAE: share of the best matrix product in bf16, and passes over the inputs of its convolutions.
    "decoder": 1.11,
    "decoder_passes": 128.9,
    # Collectives: share of the datasheet's bandwidth.
    "nvlink": 0.2441,
    "pcie": 0.49,
    "host": 0.303,
    # Seconds.
    "latency": 4.261e-05,
    "hop": 0.0002701,
    "ring": 0.0007144,
    "pixels": 0.001492,
    "fixed": 0.986,
}
"""Values by name; what belongs to one generation has its name behind a dot."""
MEASURED = ("gb200-nvl72", "b200", "h100", "h100-pcie", "a100", "h20", "rtx4090")
"""Cards of which the times of a model of the catalogue were published."""
