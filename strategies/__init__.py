"""One folder per strategy: rules.py says what is legal and what it costs, run.py changes a loaded model."""
