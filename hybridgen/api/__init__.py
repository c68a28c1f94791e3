"""What is called from outside: the spine, Python's functions, and engines."""
