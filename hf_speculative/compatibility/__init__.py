"""Check a pair before use: can this draft guess for this target, how, and is it worth it?"""
