"""Every model type that transformers generates with, tiny and random: speculative decoding against plain `generate`."""
