"""The version, where whoever needs it finds it without the public names."""

__version__ = "0.1.0"
