"""What a run of training is asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .distributions import SamplingParams
from .losses import LOSSES, NEEDS_ALL_TOKENS

#: learning rates by kind of head, where none is given: a head begins with random weights, a draft model with good ones
LEARNING_RATES = {"eagle3": 1e-3, "dflash": 1e-3, "jetspec": 1e-3, "layers": 1e-3, "draft": 1e-4, "lora": 1e-3}
#: draft tokens of a round, where no number is given; those of blocks are as many as their masks
DRAFT_TOKENS = {"dflash": 7, "jetspec": 7}
HEADS = ("eagle3", "dflash", "jetspec", "layers:N", "draft:FOLDER")


@dataclass(frozen=True)
class Settings:
    """Settings of `train`; a run is resumed with the same ones.

    Attributes:
        head: `eagle3`; `dflash`, or `jetspec`, whose block is causal; `layers:N`, a copy of the target's first N layers;
            `draft:FOLDER`, a model of its tokenizer or a head that is there, by name.
        lora_rank: of a LoRA that is trained in place of the model's own weights.
        use: how the target will be sampled from: its answers, its distributions and the acceptance are all of that kind.
        loss: a name in `LOSSES`.
        on_policy: in this share of the passes, a draft model learns from texts of its own (DistillSpec).
        steps: of the optimizer; `None`: as many as fit into `minutes`.
        minutes: of the whole run: answers, measuring and training. How many answers and steps fit follows the clock.
        num_evaluations: how often acceptance is measured, evenly over the steps; and once before them.
        batch_size: texts in a step, of all processes together.
        accumulate: each process splits its part of a step into so many passes, to save memory.
        answers_per_prompt: how many answers are sampled to each prompt.
        num_draft_tokens: in a round of the measurements, and in a DFlash block; `None`: 7 for blocks, else 5.
        ttt_steps, ttt_decay: steps of EAGLE-3's training-time test, and by what each counts less than the one before.
        head_layers, anchors: of DFlash, its layers, `None`: as many as fit the target's depth; and blocks in each text.
        draft_vocab_size: of a head: so many tokens, the most frequent of the answers.
        pack: short texts share a row, if the target and the draft keep them apart.
    """

    head: str
    lora_rank: int | None = None
    use: SamplingParams = field(default_factory=SamplingParams)
    loss: str = "lk_hybrid"
    on_policy: float = 0.0
    steps: int | None = None
    minutes: float | None = None
    num_evaluations: int = 4
    batch_size: int = 8
    accumulate: int = 1
    max_length: int = 2048
    max_new_tokens: int = 128
    answers_per_prompt: int = 1
    learning_rate: float | None = None
    held_out: int = 16
    num_draft_tokens: int | None = None
    ttt_steps: int = 3
    ttt_decay: float = 0.8
    head_layers: int | None = None
    anchors: int = 64
    draft_vocab_size: int = 32000
    pack: bool = True
    seed: int = 0

    def __post_init__(self):
        if self.kind not in {head.partition(":")[0] for head in HEADS} or (
            self.value and self.kind not in ("layers", "draft")
        ):
            raise ValueError(f"`head={self.head!r}`: give one of {', '.join(HEADS)}.")
        if self.kind == "layers" and not self.value.isdecimal():
            raise ValueError(f"`head={self.head!r}`: give the number of layers, 'layers:2'.")
        if self.kind == "draft" and not self.value:
            raise ValueError("`head='draft:'` names no model: give a folder or a Hub name, 'draft:FOLDER'.")
        if self.lora_rank is not None and self.kind != "draft":
            raise ValueError(
                f"`lora_rank={self.lora_rank}` is about a draft that is there: give `head='draft:FOLDER'`."
            )
        if not 0 <= self.on_policy <= 1 or (self.on_policy and self.kind not in ("layers", "draft")):
            raise ValueError(
                f"`on_policy={self.on_policy}`: give a share from 0 to 1, of a draft model; a head cannot write by itself."
            )
        if self.loss not in LOSSES:
            raise ValueError(f"`loss={self.loss!r}`: choose one of {', '.join(LOSSES)}.")
        if self.loss in NEEDS_ALL_TOKENS and self.use.cuts:
            raise ValueError(
                f"`loss={self.loss!r}` is infinite where `top_k` or `top_p` cut the target's distribution off: leave those "
                "out, or choose another loss."
            )
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("`steps` and `minutes` both say how long to train: give one of them.")
        if self.answers_per_prompt > 1 and self.use.temperature == 0:
            raise ValueError(
                f"`answers_per_prompt={self.answers_per_prompt}` greedy answers are one and the same: give a `temperature`, or "
                "leave it out."
            )
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise ValueError(f"`{name}={value}`: give 1 or more.")
        for name in ("minutes", "learning_rate", "ttt_decay"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"`{name}={value}`: give more than 0.")

    @property
    def kind(self) -> str:
        return self.head.partition(":")[0]

    @property
    def value(self) -> str:
        """What follows the colon."""
        return self.head.partition(":")[2]

    @property
    def rate(self) -> float:
        """The learning rate."""
        default = LEARNING_RATES["lora" if self.lora_rank is not None else self.kind]
        return default if self.learning_rate is None else self.learning_rate

    @property
    def draft_tokens(self) -> int:
        """Draft tokens of a round."""
        return DRAFT_TOKENS.get(self.kind, 5) if self.num_draft_tokens is None else self.num_draft_tokens

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"learning_rate": self.rate, "num_draft_tokens": self.draft_tokens}


#: at least 1 each
COUNTS = (
    "lora_rank",
    "steps",
    "num_evaluations",
    "batch_size",
    "accumulate",
    "max_length",
    "max_new_tokens",
    "answers_per_prompt",
    "held_out",
    "num_draft_tokens",
    "ttt_steps",
    "head_layers",
    "anchors",
    "draft_vocab_size",
)
