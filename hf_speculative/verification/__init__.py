"""Stage 3, accept: which draft tokens stay. One file for each rule; see docs/extend.md."""

from ..interfaces import Rule
from .block import BlockVerification
from .sampled import SampledVerification
from .token import TokenVerification
from .wrapped import Measured, Narrowed

#: by the names that `rule=` takes
RULES: dict[str, type[Rule]] = {"token": TokenVerification, "block": BlockVerification, "sampled": SampledVerification}


def rule_for(rule: Rule | str | None) -> Rule | None:
    """The rule of that name; a rule, or none, as it is."""
    return RULES[rule]() if isinstance(rule, str) else rule
