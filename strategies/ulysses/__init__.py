"""Heads for tokens: an all-to-all before and after attention."""
