"""The VAE decodes strips of the picture with halo exchange."""
