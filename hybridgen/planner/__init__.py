"""What a plan costs, and which plan to take. No torch."""
