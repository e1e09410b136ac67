"""Grammars: which tokens may follow, by llguidance, for each row and each draft token."""
