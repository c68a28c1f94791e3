"""The verb plan."""

import gc

gc.set_threshold(50_000)  # a plan leaves no garbage, and looking for some takes a tenth of its time
