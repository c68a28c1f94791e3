"""What runs on the ranks."""
