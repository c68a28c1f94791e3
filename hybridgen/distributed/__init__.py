"""One rank among others: groups, mesh, attention kernels, shards, processes. Knows no model."""
