"""Text with a draft and without, side by side: the command `hf-speculative generate`."""
