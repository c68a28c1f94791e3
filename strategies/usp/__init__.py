"""Ulysses around a ring, under one flag."""
