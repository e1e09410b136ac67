"""Tokenizers that differ: what two vocabularies share, one text kept aligned in both, the text that a token adds."""
