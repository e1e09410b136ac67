"""Stages 2 and 3: which guesses survive. One file a rule; see docs/add-a-rule.md."""

from __future__ import annotations

import difflib

from ..interfaces import Rule
from .block import BlockVerification
from .sampled import SampledVerification
from .token import TokenVerification

#: by the names that `rule=` takes
RULES: dict[str, type[Rule]] = {
    "token": TokenVerification,
    "block": BlockVerification,
    "sampled": SampledVerification,
}

__all__ = ["RULES", "BlockVerification", "SampledVerification", "TokenVerification", "rule_for"]


def rule_for(rule: Rule | str | None) -> Rule | None:
    """The rule of that name; a rule, or none, as it is.

    Raises:
        ValueError: no rule has that name.
        TypeError: it is neither a name nor a rule.
    """
    if rule is None or isinstance(rule, Rule):
        return rule
    if not isinstance(rule, str):
        raise TypeError(
            f"`rule={rule!r}`: pass {', '.join(map(repr, RULES))}, or an object of a subclass of hf_speculative.Rule."
        )
    if rule not in RULES:
        meant = difflib.get_close_matches(rule, RULES, n=1)
        raise ValueError(
            f"`rule={rule!r}` is not one of {', '.join(RULES)}{f': did you mean {meant[0]!r}?' if meant else '.'}"
        )
    return RULES[rule]()
