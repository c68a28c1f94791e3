"""One folder a strategy: rules.py says what it may and costs, run.py changes a loaded model."""
