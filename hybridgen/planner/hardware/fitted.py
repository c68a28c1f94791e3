"""What is fitted to published times, one value for each thing that machines share. No torch.

`python -m benchmarks.planner_accuracy --fit` finds these values from all rows of benchmarks/data/published_latency.csv,
and a test holds them to it. docs/planner-accuracy.md says how well they predict sources that they were not fitted to.
"""

from __future__ import annotations

FITTED = {
    # Attention: share of the published rate of the generation's kernel alone that it reaches inside a pipeline.
    "attention.ampere": 0.85,
    "attention.ada": 0.80,
    "attention.hopper": 0.90,
    "attention.hopper-h20": 1.00,
    "attention.blackwell": 0.79,
    "attention.geforce": 0.78,
    # Matrix products: share of the datasheet's peak in bf16.
    "matmul.ampere": 0.75,
    "matmul.ada": 0.60,
    "matmul.hopper": 0.60,
    "matmul.hopper-h20": 0.75,
    "matmul.blackwell": 0.75,
    "matmul.geforce": 0.79,
    # Norms, rope, residuals, activations: times their bytes alone.
    "passes": 3.69,
    # What computing loses with every doubling of the GPUs.
    "slowdown": 0.012,
    # The VAE: share of the datasheet's peak in bf16, and passes over the inputs of its convolutions.
    "decoder": 0.45,
    "decoder_passes": 95.0,
    # Collectives: share of the datasheet's bandwidth.
    "nvlink": 0.24,
    "pcie": 0.5,
    "host": 0.33,
    # Seconds.
    "latency": 40e-6,
    "hop": 520e-6,
    "ring": 740e-6,
    "pixels": 1.1e-3,
    "fixed": 1.0,
}
"""Values by name; what belongs to one generation has its name behind a dot."""
