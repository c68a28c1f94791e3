"""Importing this module imports what ranks need, once, in the process that they are forked from."""

from __future__ import annotations

import gc

from hybridgen.distributed.allocator import ask_for_huge_pages

ask_for_huge_pages()  # before anything imported here makes a tensor

import diffusers  # noqa: E402
import transformers  # noqa: E402

from hybridgen.engine import worker  # noqa: E402

# Attribute access is what makes these two import their parts.
assert diffusers.WanPipeline and transformers.UMT5EncoderModel and worker

# A rank's garbage collection would write to every object that it was forked with, and so copy 100 MB of its parent.
gc.freeze()
