"""Models: facts as data, and classes that take their pipelines apart."""
