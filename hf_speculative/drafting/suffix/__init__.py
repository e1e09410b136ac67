"""Texts that drafts are copied from: a row's own in an automaton, others in a store."""

from .store import SuffixStore

__all__ = ["SuffixStore"]
