"""Base classes of sources that run the model given as `draft_model=`."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from transformers import PreTrainedModel

from ..interfaces import Drafter, Schedule
from ..models import mask_unsupported_reason
from ..schedules import Adaptive
from .autoregressive import AutoregressiveDrafter
from .dynamic_tree import DEFAULT_DEPTH, DEFAULT_TOP_K, DynamicTreeDrafter
from .source import BuildContext, DraftSource

TREE_OPTIONS = ("tree_top_k", "tree_depth")
#: the largest tree that the schedule "adaptive" considers
MAX_NODES, MAX_LEVELS = 64, 8


@dataclass(frozen=True, eq=False)
class GivenModelSource(DraftSource):
    """Drafts of the user's model.

    Attributes:
        speculation_type: transformers' name of the method, which may be given and is not needed.
        tree_top_k: candidates after each draft token; 1 for chains, `None` to leave the choice to the schedule.
        tree_depth: levels of a tree, at most those where the schedule chooses.
        scores_levels: its drafter does (`AutoregressiveDrafter.scores_levels`), so that its drafts may be trees.
    """

    draft_model: PreTrainedModel
    speculation_type: str | None = None
    tree_top_k: int | None = None
    tree_depth: int | None = None

    scores_levels: ClassVar[bool] = False
    takes_guesses = True

    def __post_init__(self):
        asked = self.speculation_type
        if asked not in (None, self.method):
            raise ValueError(
                f"`speculation_type={asked!r}` needs a DFlash draft, but `draft_model` is of type "
                f"{type(self.draft_model).__name__}: leave it out."
            )
        if self.tree_depth is not None and self.tree_top_k == 1:
            raise ValueError(f"`tree_depth={self.tree_depth}` has no effect on chains (`tree_top_k=1`): leave one out.")

    @classmethod
    def options(cls) -> tuple[str, ...]:
        return tuple(name for name in super().options() if cls.scores_levels or name not in TREE_OPTIONS)

    @property
    def may_grow_levels(self) -> bool:
        return self.scores_levels and self.tree_top_k != 1

    @property
    def counts_nodes(self) -> bool:  # type: ignore[override]
        return self.may_grow_levels and (self.tree_top_k, self.tree_depth) != (None, None)

    @property
    def cost_key(self) -> Hashable:
        return super().cost_key, self.tree_top_k, self.tree_depth

    @property
    def label(self) -> str:
        tree = {"top": self.tree_top_k, "depth": self.tree_depth}
        said = [f"{name} {value}" for name, value in tree.items() if value is not None]
        return f"{super().label} ({', '.join(said)})" if said else super().label

    def adaptive_schedule(self, max_tokens: int, is_default: bool) -> Schedule:
        if not self.may_grow_levels:
            return super().adaptive_schedule(max_tokens, is_default)
        max_nodes = MAX_NODES if is_default else max_tokens
        return Adaptive(max_tokens, max_nodes, min(max_tokens, self.tree_depth or MAX_LEVELS), window=self.window)

    def in_trees(self, drafter: AutoregressiveDrafter) -> Drafter:
        """`drafter`, or trees of what it guesses: where they were asked for, or the schedule says."""
        if self.tree_top_k == 1:
            return drafter
        if not self.counts_nodes:
            return DynamicTreeDrafter(drafter, depth=None)
        return DynamicTreeDrafter(drafter, self.tree_top_k or DEFAULT_TOP_K, self.tree_depth or DEFAULT_DEPTH)


class HeadSource(GivenModelSource):
    """A published draft head: made for one target, whose states, embeddings or cache it reads, and known by its config.

    Attributes:
        config_fields: fields that only configs of this kind of head have.
    """

    config_fields: ClassVar[tuple[str, ...]]
    runs_target = reads_states = True

    @classmethod
    def takes(cls, value) -> bool:
        config = value.config if isinstance(value, PreTrainedModel) else None  # drafters may have one, too
        return all(hasattr(config, name) for name in cls.config_fields)

    @property
    def name(self) -> str:
        return type(self.draft_model).__name__

    def drafter_for(self, model: PreTrainedModel) -> Drafter:
        """What drafts for the target `model`."""
        raise NotImplementedError

    def drafter(self, call: BuildContext) -> Drafter:
        return self.drafter_for(call.model)

    def hidden_layers(self, model: PreTrainedModel) -> tuple[int, ...]:
        return tuple(self.drafter_for(model).hidden_layers)

    def unsupported_reason(self, config) -> str | None:
        """What the head needs that a target of this text `config` is not; `None` if it fits."""
        raise NotImplementedError

    def check(self, model: PreTrainedModel) -> None:
        if reason := mask_unsupported_reason(self.draft_model):
            raise ValueError(f"`draft_model` {reason}: load it with attn_implementation='sdpa'.")
        config = model.config.get_text_config(decoder=True)
        needs = self.unsupported_reason(config)
        if needs is not None:
            raise ValueError(
                f"`draft_model`: {self.name} was made for {needs}, the target, {type(model).__name__}, has hidden size "
                f"{config.hidden_size} and {config.num_hidden_layers} layers: use the draft that belongs to it."
            )
