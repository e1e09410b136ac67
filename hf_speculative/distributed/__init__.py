"""Several processes: tensor and pipeline parallel models, on which one rank decides, and ranks that keep step.

Parts that stand around those of the loop; the loop does not know of them.
"""
