"""Vocabularies that differ: what two of them share, one text kept in step in both, the text that a token adds."""
