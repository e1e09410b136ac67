"""Sources of drafts: their interface, the context in which a call builds a drafter, and base classes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from ..interfaces import CachedModel, Drafter, Schedule
from ..models import Inputs, Path, RecordingUniversalModel, mask_unsupported_reason, num_parameters
from ..models.execution import Execution, recording_model
from ..schedules import Adaptive
from ..tokenizers.vocabulary import VocabularyMatch
from .autoregressive import AutoregressiveDrafter
from .dynamic_tree import DEFAULT_DEPTH, DEFAULT_TOP_K, DynamicTreeDrafter

#: the longest draft that "adaptive" considers
DEFAULT_MAX_DRAFT_TOKENS = 16
TREE_OPTIONS = ("tree_top_k", "tree_depth")
#: the way out where a head is another target's
OF_TARGET = "use the draft that belongs to it"
#: the largest tree that the schedule "adaptive" considers
MAX_NODES, MAX_LEVELS = 64, 8


@dataclass(frozen=True)
class BuildContext:
    """A call, prepared by the target's own `generate`.

    Attributes:
        model: the target.
        path: of its cache.
        keep: outputs of its passes that the call asks for.
        inputs_tensor: its main input: the prompt's ids, or what its encoder read.
        generate_kwargs: what `generate` was given.
        execution: how passes run.
        is_static: passes of the target have static shapes, eager ones too.
    """

    model: PreTrainedModel
    inputs: Inputs
    path: Path
    keep: tuple[str, ...]
    inputs_tensor: Tensor | None
    generate_kwargs: dict[str, Any]
    execution: Execution
    is_static: bool = False


class DraftSource:
    """Where the drafts of a call come from. A subclass is a dataclass with `method` and `drafter`; the rest has defaults.

    Its first field is the value of `argument`. Each other one is that of the option of the same name (`option_table.py`), the
    default where it was not given. One called `in_call` gets the names of those that the call itself gives, which have to have
    an effect. What can be judged by several of these is refused at once, in `__post_init__`.

    Attributes:
        argument: the keyword of a call that asks for it.
        method: its name, as in vLLM.
        draft_model: the model of its own that it runs, if it does.
        num_draft_tokens: the most draft tokens, where the source is asked for by that number.
        reads_states: its drafter reads hidden states of the target (`Drafter.hidden_layers`).
        runs_target: it runs parts of the target on their own: layers, embeddings, head.
        has_own_passes: the draft model's passes, where it is a head, may be compiled ahead of time.
        writes_target: its draft steps write into the target's own cache.
        needs_ragged: it runs the target's layers or reads their keys and values, so that these have to lie in the ragged cache.
        counts_nodes: a number of draft tokens is that of a tree's nodes, more than its longest path has.
        cost_key: what the costs of its rounds depend on beside models, batch and sampling.
        ends_early: a confidence threshold may end its drafts.
        most_tokens: of the drafts among which the schedule "adaptive" chooses.
        takes_guesses: guesses from text join its drafts where nothing says how to draft.
        window: tokens of a text that its draft model reads at most, where texts are long; `None`: all, 0: it reads none.
        tried: values of `argument` that `check` tries without being asked: none for most sources.
    """

    argument: ClassVar[str] = "draft_model"
    method: ClassVar[str]
    runs_target: ClassVar[bool] = False
    has_own_passes: ClassVar[bool] = False
    writes_target: ClassVar[bool] = False
    needs_ragged: ClassVar[bool] = False
    ends_early: ClassVar[bool] = True
    takes_guesses: ClassVar[bool] = False
    counts_nodes: bool = False
    reads_states: bool = False
    most_tokens: ClassVar[int] = DEFAULT_MAX_DRAFT_TOKENS
    draft_model: PreTrainedModel | None = None
    num_draft_tokens: int | None = None
    window: ClassVar[int | None] = None
    tried: ClassVar[tuple[Any, ...]] = ()
    #: what guesses without a pass, and what drafts, where it is two sources in one
    parts: tuple[DraftSource, DraftSource] | None = None

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """Names of the options that are about this source."""
        return tuple(field.name for field in fields(cls)[1:] if field.name != "in_call") if is_dataclass(cls) else ()

    @classmethod
    def takes(cls, value) -> bool:
        """Whether it is this source that `value` asks for, where several have the same `argument`."""
        return True

    @classmethod
    def asked_by(cls) -> str:
        """How a call asks for it, in a message."""
        return cls.argument

    @classmethod
    def worth_trying(cls, model: PreTrainedModel) -> tuple[Any, ...]:
        """`tried`, on the target `model`."""
        return cls.tried

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.asked_by()

    @property
    def label(self) -> str:
        """What reports call it: the method, and what tells it from others of that method beside the draft length."""
        return self.method

    @property
    def reads_target(self) -> bool:
        """It needs passes of the target that are not captured, and compiled only if they give states as well."""
        return self.runs_target or self.reads_states

    @property
    def cost_key(self) -> Hashable:
        return self.method

    def for_model(self, model: PreTrainedModel) -> DraftSource:
        """The source that drafts for the target `model`, if this one stands for several."""
        return self

    def check(self, model: PreTrainedModel) -> None:
        """Refuse what does not fit the target `model`, before the first forward.

        Raises:
            ValueError: why it does not, and the way out.
        """

    def check_ids(self, model: PreTrainedModel) -> None:
        """Refuse drafts whose ids clearly mean other tokens than those of the target `model`."""

    def vocabulary(self, model: PreTrainedModel, do_sample: bool) -> VocabularyMatch | None:
        """How its vocabulary compares to that of the target `model`; `None` for one and the same."""
        return None

    def max_draft_tokens(self, model: PreTrainedModel) -> int | None:
        """The longest draft that it can propose for the target `model`; `None` for any. Called after `check`."""
        return None

    def adaptive_schedule(self, max_tokens: int, is_default: bool) -> Schedule:
        """The schedule "adaptive" for drafts of up to `max_tokens`; `is_default`: no number was given."""
        return Adaptive(max_tokens, window=self.window)

    def around(self, schedule: Schedule, max_tokens: int, is_default: bool) -> Schedule:
        """The call's `schedule`, made from such a number of tokens, or one around it."""
        return schedule

    def cost_of_token(self, model: PreTrainedModel) -> float:
        """What a draft token is assumed to cost, in passes of the target `model`, until such rounds were timed.

        By the number of weights alone, which is what small batches are bound by.
        """
        return 0.0 if self.draft_model is None else num_parameters(self.draft_model) / num_parameters(model)

    def costs_end_with(self, model: PreTrainedModel) -> object:
        """What costs were learned is kept for later calls until this object goes; `model` is the target."""
        return self.draft_model or model

    def hidden_layers(self, model: PreTrainedModel) -> tuple[int, ...]:
        """Which of the target's hidden states its drafter reads, of drafters that are known by the draft model."""
        return ()

    def build(self, call: BuildContext) -> tuple[CachedModel | None, Drafter]:
        """The target with its cache, where it has to be of a kind of its own, and the drafter."""
        drafter = self.drafter(call)
        if not self.reads_states:
            return None, drafter
        layers = tuple(drafter.hidden_layers)
        if call.path.name != "ragged":
            return RecordingUniversalModel(call.model, call.inputs, layers, call.keep), drafter
        return recording_model(call.model, layers, call.execution, call.is_static), drafter

    def drafter(self, call: BuildContext) -> Drafter:
        """What drafts in this call."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class OwnDrafterSource(DraftSource):
    own: Drafter

    method = "custom"

    @classmethod
    def takes(cls, value) -> bool:
        return isinstance(value, Drafter)

    @property
    def name(self) -> str:
        return type(self.own).__name__

    @property
    def reads_states(self) -> bool:  # type: ignore[override]
        return bool(self.own.hidden_layers)

    def costs_end_with(self, model: PreTrainedModel) -> object:
        """Its class: a new object in each call shall not be measured each time."""
        return type(self.own)

    def drafter(self, call: BuildContext) -> Drafter:
        return self.own


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
            reason = f"needs a DFlash draft, but `draft_model` is of type {type(self.draft_model).__name__}"
            raise ValueError(f"`speculation_type={asked!r}` {reason}: leave it out.")
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
            target = f"{type(model).__name__}, has hidden size {config.hidden_size} and {config.num_hidden_layers} layers"
            raise ValueError(f"`draft_model`: {self.name} was made for {needs}, the target, {target}: {OF_TARGET}.")
