"""What can be set: `SpeculativeConfig`, which users write, and `Options`, all of one call's."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..interfaces import Drafter, Rule, Schedule
from ..verification import rule_for


@dataclass(frozen=True)
class SpeculativeConfig:
    """Settings that have no field in transformers' `GenerationConfig`.

    Args:
        num_draft_tokens: tokens to draft in each round, by default chosen round by round (docs/draft-length.md); the same as
            transformers' `num_assistant_tokens`.
        drafter: your own drafter, in place of a draft model (docs/add-a-drafter.md).
        rule: how a draft is verified: `"token"`, `"block"`, `"sampled"`, or your own (docs/add-a-rule.md). By default block
            verification when sampling from a draft model's own distribution, sampled verification for proposals that are
            one-hot.
        schedule: your own schedule, in place of `num_assistant_tokens_schedule` and `assistant_confidence_threshold`.
        reproducible: when sampling, give token for token what plain `generate` gives under the same seed.
        generator: source of randomness; torch's global one by default.
        compile: compile the passes of both models by torch.compile: the first call takes long, later ones are faster
            (docs/benchmarks.md). Kept in memory until `detach`, or until the model goes.
        cuda_graphs: on a CUDA device, capture the passes of both models once and replay them, compiled or not.
        allow_lossy: accept a rule that does not declare itself lossless.
        tokenizer, draft_tokenizer: those of the target and of the draft, where their vocabularies differ.
        vocabulary_mapping: how a draft with another vocabulary proposes: `"intersection"`, tokens that both have, or
            `"strings"`, text that is encoded anew. Chosen by the vocabularies by default (docs/different-tokenizers.md).
    """

    num_draft_tokens: int | None = None
    drafter: Drafter | None = None
    rule: Rule | str | None = None
    schedule: Schedule | None = None
    reproducible: bool | None = None
    generator: torch.Generator | None = None
    compile: bool | None = None
    cuda_graphs: bool | None = None
    allow_lossy: bool = False
    tokenizer: PreTrainedTokenizerBase | None = None
    draft_tokenizer: PreTrainedTokenizerBase | None = None
    vocabulary_mapping: str | None = None

    def __post_init__(self):
        rule_for(self.rule)
        if self.schedule is not None and self.num_draft_tokens is not None:
            raise ValueError(
                "`num_draft_tokens` has no effect beside `schedule`, which chooses it: leave one of them out."
            )

    def over(self, other: SpeculativeConfig) -> SpeculativeConfig:
        """This config, with what it leaves open taken from `other`."""
        names = [f.name for f in fields(self)]
        chosen = {n: first_given(getattr(self, n), getattr(other, n)) for n in names}
        if self.num_draft_tokens is not None:
            chosen["schedule"] = None  # the nearer word about the draft length counts
        elif self.schedule is not None:
            chosen["num_draft_tokens"] = None
        return SpeculativeConfig(**chosen | {"allow_lossy": self.allow_lossy or other.allow_lossy})


@dataclass(frozen=True)
class Options:
    """One call's options, resolved."""

    draft_model: PreTrainedModel | None
    prompt_lookup_num_tokens: int | None
    max_ngram: int
    num_draft_tokens: int
    schedule_name: str
    confidence_threshold: float
    config: SpeculativeConfig
    early_exit: int | None = None
    use_mtp: bool | None = None
    speculation_type: str | None = None
    #: nobody said how many tokens to draft: a drafter made for a number takes its own at most
    length_is_default: bool = False
    generator_in_call: bool = False
    streamer: Any = None
    #: ranks wait for each other before each forward; by default where a model's weights are sharded
    synced_gpus: bool | None = None
    #: how many tokens of the committed text are encoded again, with `vocabulary_mapping="strings"` only
    lookbehinds: dict[str, int] = field(default_factory=dict)
    lookbehinds_in_call: list[str] = field(default_factory=list)
    #: rows that run together, the others wait until rows are done; all of them by default
    rows_at_once: int | None = None
    #: what goes on to transformers' generate
    generate_kwargs: dict[str, Any] = field(default_factory=dict)


def first_given(*values):
    """The first that is not `None`; `None` if all are."""
    return next((value for value in values if value is not None), None)
