"""One thread in this process: ranks are forked from it, and share its cores with it."""

import torch

torch.set_num_threads(1)
