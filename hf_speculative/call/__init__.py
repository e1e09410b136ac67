"""One call, from its keywords to its result: options, checks, preparing, putting the parts together, running, output, counts.

What belongs to a single stage lies in that stage's room.
"""
