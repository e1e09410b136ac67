"""Shared helpers for output: pages, files, formats, facts of the machine.

Nothing here knows where the figures come from.
"""
