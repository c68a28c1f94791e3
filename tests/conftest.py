"""One thread in this process: ranks are forked from it, and share two cores with it."""

import os

import torch

torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; tables would be folded
