"""What several test files use."""
