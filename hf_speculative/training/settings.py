"""The settings of a training run. Importing this imports nothing heavy: the command's options are made from it."""

from dataclasses import asdict, dataclass, field
from typing import Any

from ..command.settings import DATA, check_ranges, setting
from ..distillation.sampling_params import SamplingParams

#: learned in one reading, without steps
TABLES = "tables"
#: learning rates where none is given: a head begins with random weights, a draft model with good ones
LEARNING_RATE, OF_DRAFT_MODELS = 1e-3, 1e-4
#: draft tokens of a round, where no number is given; those of blocks are as many as their masks
DRAFT_TOKENS = {"dflash": 7, "jetspec": 7, TABLES: 8}
LOSS_NAMES = ("lk_hybrid", "forward_kl", "reverse_kl", "total_variation", "negative_log_acceptance", "cross_entropy")
#: those that are infinite where the target's distribution is cut off
NEEDS_ALL_TOKENS = ("reverse_kl",)
HEADS = ("eagle3", "dflash", "jetspec", TABLES, "layers:N", "draft:FOLDER")


#: where these are shown among a command's options
WHERE, HOW = DATA, "Training"
#: minutes of a run where neither they nor steps are given
MINUTES = 60.0


@dataclass(frozen=True)
class Settings:
    """Settings of `train`, and the options of its command; a run is resumed with the same ones.

    Raises:
        ValueError: a value out of range, or settings that exclude each other.
    """

    head: str = setting(
        "eagle3",
        "What is trained. eagle3: a head that reads the target's hidden states, and goes on from its own. dflash, jetspec: one "
        "that fills a whole block at once, jetspec's causal. tables: what follows each token and each run of tokens, in "
        "minutes. layers:N: a copy of the target's first N layers. "
        "draft:FOLDER: a small model of the target's tokenizer, or a head, that is there already.",
    )
    use: SamplingParams = field(default_factory=SamplingParams)
    steps: int | None = setting(None, "Steps of the optimizer.", least=1)
    minutes: float | None = setting(None, f"Time, answers included. Default: {MINUTES:g}, without steps.", above=0)
    num_prompts: int = setting(512, "Prompts that the target writes itself, without data.", least=2, panel=WHERE)
    held_out: int = setting(16, "Prompts to measure on, which are not learned from.", least=1, panel=WHERE)
    max_new_tokens: int = setting(256, "The most tokens of an answer.", least=1, panel=WHERE)
    answers_per_prompt: int = setting(1, "Answers sampled to each prompt: more to learn from.", least=1, panel=WHERE)
    loss: str = setting(
        "lk_hybrid",
        "lk_hybrid is KL first, then the chance of a rejection; cross_entropy is for greedy use alone.",
        choices=LOSS_NAMES,
        panel=HOW,
    )
    lora_rank: int | None = setting(None, "With draft:FOLDER: the rank of a LoRA, then merged.", least=1, panel=HOW)
    learning_rate: float | None = setting(None, "Default: 1e-4 for draft:FOLDER, else 1e-3.", above=0, panel=HOW)
    batch_size: int = setting(8, "Texts in a step, of all processes together.", least=1, panel=HOW)
    accumulate: int = setting(1, "Split each step into this many passes, to save memory.", least=1, panel=HOW)
    max_length: int = setting(2048, "Tokens of a text; the rest is cut off.", least=2, panel=HOW)
    num_evaluations: int = setting(8, "Measurements, each with a checkpoint.", "--evaluations", least=1, panel=HOW)
    num_draft_tokens: int | None = setting(
        None,
        "Draft tokens in a round of those measurements, and in the block of dflash and jetspec. Default: 7 for these, else 5.",
        least=1,
        panel=HOW,
    )
    ttt_steps: int = setting(3, "eagle3: steps on its own states (training-time test).", least=1, panel=HOW)
    ttt_decay: float = setting(0.8, "eagle3: the weight of such a step, over the one before.", above=0, panel=HOW)
    head_layers: int | None = setting(None, "dflash, jetspec: layers. Default: by the target's.", least=1, panel=HOW)
    anchors: int = setting(64, "dflash, jetspec: blocks in each text, at random places.", least=1, panel=HOW)
    draft_vocab_size: int = setting(32000, "eagle3, dflash: the tokens to propose, most frequent.", least=1, panel=HOW)
    seed: int = setting(0, "Random seed.")

    def __post_init__(self):
        check_ranges(self)
        takes_value = {kind: bool(value) for kind, _, value in (head.partition(":") for head in HEADS)}
        if self.kind not in takes_value or (self.value and not takes_value[self.kind]):
            raise ValueError(f"`head={self.head!r}`: give one of {', '.join(HEADS)}.")
        if self.kind == "layers" and not self.value.isdecimal():
            raise ValueError(f"`head={self.head!r}`: give the number of layers, 'layers:2'.")
        if self.kind == "draft" and not self.value:
            raise ValueError("`head='draft:'` names no model: give a folder or a Hub name, 'draft:FOLDER'.")
        if self.lora_rank is not None and self.kind != "draft":
            raise ValueError(f"`lora_rank={self.lora_rank}` needs a draft that is there: give `head='draft:FOLDER'`.")
        if self.loss in NEEDS_ALL_TOKENS and self.use.cuts:
            raise ValueError(f"`loss={self.loss!r}` is infinite where `top_k` or `top_p` cut off: choose another loss.")
        if self.steps is not None and self.minutes is not None:
            raise ValueError("`steps` and `minutes` both say how long to train: give one of them.")
        if self.steps is None and self.minutes is None:
            object.__setattr__(self, "minutes", MINUTES)
        if self.answers_per_prompt > 1 and self.use.temperature == 0:
            asked = f"`answers_per_prompt={self.answers_per_prompt}`"
            raise ValueError(f"{asked} greedy answers are the same: give a `temperature`.")

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
        if self.learning_rate is not None or self.kind == TABLES:
            return self.learning_rate or 0.0
        return OF_DRAFT_MODELS if self.kind == "draft" and self.lora_rank is None else LEARNING_RATE

    @property
    def draft_tokens(self) -> int:
        """Draft tokens of a round."""
        return DRAFT_TOKENS.get(self.kind, 5) if self.num_draft_tokens is None else self.num_draft_tokens

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"learning_rate": self.rate, "num_draft_tokens": self.draft_tokens}
