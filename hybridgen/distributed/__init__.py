"""One rank among others, knowing no model: groups, mesh, attention kernels, shards, processes."""
