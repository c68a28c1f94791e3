"""Properties of many requests and files, and the fit of the planner: no torch, no ranks, minutes in all."""
