"""Models: facts as data, and adapters that take their pipelines apart."""
