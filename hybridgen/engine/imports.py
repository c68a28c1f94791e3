"""Importing this module imports what ranks need, once, in the process that they are forked from."""

from __future__ import annotations

import gc

import diffusers
import transformers

from hybridgen.engine import worker

# Attribute access is what makes these two import their parts.
assert diffusers.WanPipeline and transformers.UMT5EncoderModel and worker

# A rank's garbage collection would write to every object that it was forked with, and so copy 100 MB of its parent.
gc.freeze()
