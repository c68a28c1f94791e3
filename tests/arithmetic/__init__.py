"""Tests of arithmetic and of words: no torch, no ranks, seconds in all."""
