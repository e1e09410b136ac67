"""Can this draft guess for this target, how, and is it worth it? Asked before a pair is put to work: `check`."""
