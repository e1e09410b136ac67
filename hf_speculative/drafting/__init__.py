"""Stage 1, draft: the drafters, one file each; see docs/extend.md."""

from .dflash import DFlash
from .draft_model import DraftModel
from .dynamic_tree import DynamicTreeDrafter
from .eagle3 import Eagle3, PEagle
from .gemma4_assistant import Gemma4Assistant
from .hybrid import HybridDrafter
from .model_drafter import StringMatch, TokenIntersection
from .mtp import Mtp, RecursiveMtp
from .proposers import CorpusSuffix, PromptSuffix, Proposer, Recycling
from .suffix.store import SuffixStore
from .tree_drafter import TreeDrafter

DRAFTERS = (DynamicTreeDrafter, DraftModel, HybridDrafter, StringMatch, TokenIntersection, TreeDrafter)
