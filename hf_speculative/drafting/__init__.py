"""Stage 1, draft: the drafters, one file each; see docs/extend.md."""

from .draft_model import DraftModel as DraftModel
from .dynamic_tree import DynamicTreeDrafter as DynamicTreeDrafter
