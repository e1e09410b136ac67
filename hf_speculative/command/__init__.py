"""What the parts of the command `hf-speculative` share: options, exits, Ctrl-C. Importing it imports nothing heavy.

Each tool brings its own part of the command, in a `cli.py`.
"""
