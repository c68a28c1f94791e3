"""The VAE decodes strips of the frame with halo exchange."""
