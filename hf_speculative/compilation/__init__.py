"""The command that compiles passes ahead of time; what it makes and where it lies is `models/artifacts.py`."""
