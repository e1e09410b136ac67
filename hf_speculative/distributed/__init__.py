"""Several processes: tensor and pipeline parallel models, where one rank decides, and ranks that keep step.

These parts wrap those of the loop, which does not know of them.
"""
