"""A job from files to file: ranks that load a model and make a clip."""
