"""The commands `eval`, `bench` and `generate`. Importing them imports nothing heavy."""
