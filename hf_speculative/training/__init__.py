"""Making drafts: a head or a small model that guesses what a given target writes."""
