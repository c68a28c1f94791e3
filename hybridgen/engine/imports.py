"""Importing this module imports what ranks need, once, in the process that they are forked from."""

from __future__ import annotations

import gc

gc.disable()  # collections would look again and again at all that is imported, for a fifth of the time

import diffusers  # noqa: E402
import transformers  # noqa: E402

from hybridgen.engine import worker  # noqa: E402

# Attribute access is what makes these two import their parts.
assert diffusers.WanPipeline and transformers.UMT5EncoderModel and worker

# A rank's garbage collection would write to every object that it was forked with, and so copy 100 MB of its parent.
gc.freeze()
gc.enable()
