"""A server on top of transformers' own: many requests in one loop, each with its own settings, seed, end and stream.

Here go the loop that takes requests as they come, what it needs of each of them, and how transformers' server reaches it.
"""
