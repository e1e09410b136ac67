"""Stage 1: who guesses. One file a drafter; see docs/add-a-drafter.md."""

from .draft_model import DraftModel
from .prompt_lookup import PromptLookup
from .string_match import StringMatch
from .token_intersection import TokenIntersection

DRAFTERS = (DraftModel, PromptLookup, StringMatch, TokenIntersection)

__all__ = ["DRAFTERS", "DraftModel", "PromptLookup", "StringMatch", "TokenIntersection"]
