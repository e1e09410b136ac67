"""Texts to copy drafts from: a row's own, which grows, and a store of others."""
