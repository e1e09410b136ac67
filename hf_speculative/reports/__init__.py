"""What the tools share that show or write something: pages, files, speedups, facts of the machine.

Nothing here knows where the figures come from.
"""
