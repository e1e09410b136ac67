"""Stage 1: who guesses. One file a drafter; see docs/add-a-drafter.md."""

from .draft_model import DraftModel
from .prompt_lookup import PromptLookup

DRAFTERS = (DraftModel, PromptLookup)

__all__ = ["DRAFTERS", "DraftModel", "PromptLookup"]
