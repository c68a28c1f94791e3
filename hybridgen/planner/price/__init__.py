"""What a plan costs: compute, messages, memory, the autoencoder. No torch."""
