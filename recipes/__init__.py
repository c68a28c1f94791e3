"""Recipe files: model, request, degrees and hardware that belong together."""
