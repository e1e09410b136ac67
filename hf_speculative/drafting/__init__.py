"""Stage 1, draft: who guesses. One file for each drafter; see docs/add-a-drafter.md."""

from .beams import Beams
from .dflash import DFlash
from .draft_model import DraftModel
from .drawn_tree import DrawnTree
from .eagle3 import Eagle3, PEagle
from .early_exit import EarlyExit
from .gemma4_assistant import Gemma4Assistant
from .guessers import DEFAULT_MAX_DEPTH, Guesser, Ngrams, OtherTexts, OwnText, Recycling
from .guesses_first import GuessesFirst
from .mtp import Mtp, RecursiveMtp
from .nothing import Nothing
from .prompt_lookup import PromptLookup
from .string_match import StringMatch
from .suffix import SuffixStore
from .token_intersection import TokenIntersection
from .tree_drafter import TreeDrafter

DRAFTERS = (Beams, DraftModel, DrawnTree, GuessesFirst, PromptLookup, StringMatch, TokenIntersection, TreeDrafter)
#: those that need a target that was made for them
TIED_DRAFTERS = (DFlash, Eagle3, EarlyExit, Gemma4Assistant, Mtp, PEagle, RecursiveMtp)

__all__ = [
    "DEFAULT_MAX_DEPTH",
    "DRAFTERS",
    "TIED_DRAFTERS",
    "Beams",
    "DFlash",
    "DraftModel",
    "DrawnTree",
    "Eagle3",
    "EarlyExit",
    "Gemma4Assistant",
    "Guesser",
    "GuessesFirst",
    "Mtp",
    "Ngrams",
    "Nothing",
    "OtherTexts",
    "OwnText",
    "PEagle",
    "PromptLookup",
    "RecursiveMtp",
    "Recycling",
    "StringMatch",
    "SuffixStore",
    "TokenIntersection",
    "TreeDrafter",
]
