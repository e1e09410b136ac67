"""The version, importable without the public names."""

__version__ = "0.1.0"
