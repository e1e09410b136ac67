"""Defaults of `check` and its command. Importing it imports nothing heavy."""

#: how many texts are written side by side: one, and a small batch
BATCH_SIZES = (1, 8)
#: seconds to measure in
SECONDS = 120.0
