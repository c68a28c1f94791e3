"""Queries gathered along rows, K/V along columns, partial outputs merged."""
