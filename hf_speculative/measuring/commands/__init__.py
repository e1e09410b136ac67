"""The commands `eval` and `generate`. Importing them imports nothing heavy."""
