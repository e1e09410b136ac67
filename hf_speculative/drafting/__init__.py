"""Stage 1: who guesses. One file a drafter; see docs/add-a-drafter.md."""

from .dflash import DFlash
from .draft_model import DraftModel
from .early_exit import EarlyExit
from .gemma4_assistant import Gemma4Assistant
from .mtp import Mtp
from .nothing import Nothing
from .prompt_lookup import PromptLookup
from .string_match import StringMatch
from .token_intersection import TokenIntersection

DRAFTERS = (DraftModel, PromptLookup, StringMatch, TokenIntersection)
#: those that need a target that was made for them
TIED_DRAFTERS = (DFlash, EarlyExit, Gemma4Assistant, Mtp)

__all__ = [
    "DRAFTERS",
    "TIED_DRAFTERS",
    "DFlash",
    "DraftModel",
    "EarlyExit",
    "Gemma4Assistant",
    "Mtp",
    "Nothing",
    "PromptLookup",
    "StringMatch",
    "TokenIntersection",
]
