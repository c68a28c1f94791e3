"""From a job to a file: ranks that load a model and make a clip."""
