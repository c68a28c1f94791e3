"""Which plan to take: search, ranking, reasons, refusals. No torch."""
