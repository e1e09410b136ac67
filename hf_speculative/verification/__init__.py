"""Stages 2 and 3: which guesses survive. One file a rule; see docs/add-a-rule.md."""

from .block import BlockVerification
from .sampled import SampledVerification
from .token import TokenVerification

RULES = (TokenVerification, BlockVerification, SampledVerification)

__all__ = ["RULES", "BlockVerification", "SampledVerification", "TokenVerification"]
