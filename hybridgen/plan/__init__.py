"""Frozen values that every rank must agree on: degrees, layout, model facts, the plan, its messages. No torch."""
