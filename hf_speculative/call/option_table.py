"""The table of options: a new option is a row here, and code reads it from `Options` by name.

The resolver (`options.py`), `SpeculativeConfig`, the commands and docs/options.md read it. Importing it imports nothing heavy.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from .option_types import Drafts, Flag, Grammars, Instance, Kind, Name, Probability, Streamer, WholeNumber, close_to

T = TypeVar("T")

#: the value of `reproducible` under which logits have the same bits with any draft
BITWISE = "bitwise"

#: places that an option may come from, the nearest first; what was attached is a `SpeculativeConfig`
CALL = "call"
CONFIG = "SpeculativeConfig"
GENERATION_CONFIG = "generation_config"
DRAFTS_OWN = "the draft's generation_config"

#: how a call without a draft treats an option
REFUSED = "refused"
HOLDS = "plain decoding does that anyway"
HANDED_ON = "transformers knows it too"


@dataclass(frozen=True)
class Option:
    """One row.

    Attributes:
        places: the places that may set it.
        default: the default, in words.
        help: one line, for docs/options.md, `--help` and docstrings.
        aliases: names that mean the same.
        is_source: it asks for a source of drafts.
        without_draft: how a call without a draft treats it.
        page: its page of docs/.
    """

    name: str
    type: Kind
    places: tuple[str, ...]
    default: str
    help: str
    aliases: tuple[str, ...] = ()
    is_source: bool = False
    without_draft: str = REFUSED
    page: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


_SETTING = (CONFIG,)
_SOURCE = (CALL, GENERATION_CONFIG)
_AS_CONFIGURED = (CALL, GENERATION_CONFIG, DRAFTS_OWN)

DRAFTS = Drafts(
    ("auto", "suffix", "recycling", "ngram", "grammar"),
    {"auto": "is several of these already: leave it out, or the others"},
    Instance(
        ("torch.nn:Module", "hf_speculative:Drafter", "hf_speculative:DraftSource"),
        "a transformers model, its name or folder, a hf_speculative.Drafter or DraftSource",
    ),
)
_SCHEDULE = Instance(("hf_speculative:Schedule",), "an object of a subclass of hf_speculative.Schedule")
_SCHEDULES = Name(
    ("adaptive", "constant", "heuristic", "heuristic_transient"),
    otherwise="; for your own, give `speculative_config=SpeculativeConfig(schedule=...)`",
)
_RULE = Instance(("hf_speculative:Rule",), "an object of a subclass of hf_speculative.Rule")
_RULES = Name(("token", "block", "sampled"), _RULE)
_TOKENIZER = Instance(("transformers:PreTrainedTokenizerBase",), "a transformers tokenizer")
_GENERATOR = Instance(("torch:Generator",), "a torch.Generator")
_LEARNER = Instance(("hf_speculative:Learner",), "a hf_speculative.Learner; True and folders are for `attach(learn=...)`")
_CONFIG = Instance(("hf_speculative:SpeculativeConfig",), "a hf_speculative.SpeculativeConfig")
_CORPUS = Name(
    instance=Instance(
        ("hf_speculative:SuffixStore", "os:PathLike", "builtins:list", "builtins:tuple"),
        "a file or folder, a list of texts and paths, or a hf_speculative.SuffixStore",
    )
)
_REQUESTS = WholeNumber("keeps no answer: give 1 or more, or leave it out.")
_LENGTH = WholeNumber("reads nothing: give 1 or more, or leave it out.")

# fmt: off
#: rows by what they are about; sources that a generation_config names in the order in which transformers asks for them
GROUPS = {
    "Source": (
        Option("draft_model", DRAFTS, (CALL,), "what was attached; `None` in a call is plain decoding",
               "What guesses ahead: a smaller model, a draft head, a drafter of your own, or a method that needs none. "
               "`suffix` copies what followed the same tokens in the text, in earlier answers, in a corpus. `recycling` tries "
               "what the target found likely after the same token. `ngram` is prompt lookup. `auto` is `recycling` and "
               "`suffix`, or the target's own MTP layers. A list joins several. "
               "`grammar` is only what the call's `grammar` forces.",
               aliases=("assistant_model",), is_source=True, page="choose-a-draft.md"),
        Option("assistant_early_exit", WholeNumber(), _SOURCE, "off",
               "Draft with this many of the target's own first layers.", is_source=True, page="self-drafting.md"),
        Option("prompt_lookup_num_tokens", WholeNumber(), _SOURCE, "off",
               "`draft_model='ngram'` with up to this many tokens a round.", is_source=True, page="no-draft-model.md"),
        Option("use_mtp", Flag(), _SOURCE, "off",
               "Draft with the multi-token prediction layers of the target's checkpoint.",
               is_source=True, page="self-drafting.md"),
    ),
    "Length": (
        Option("num_draft_tokens", WholeNumber(), (CALL, CONFIG, GENERATION_CONFIG, DRAFTS_OWN),
               "chosen each round, by measured cost",
               "How many tokens to draft before the target checks them.",
               aliases=("num_assistant_tokens",), page="draft-length.md"),
        Option("num_assistant_tokens_schedule", _SCHEDULES, _AS_CONFIGURED, "`adaptive`; `constant` where a number is given",
               "How that number changes from round to round: `adaptive`, by measured cost, up to the number. `heuristic`: +2 "
               "after a draft that was accepted whole, else -1.", page="draft-length.md"),
        Option("schedule", _SCHEDULE, _SETTING, "none",
               "Your own schedule, in place of a number, a named schedule and `assistant_confidence_threshold`.",
               page="draft-length.md"),
        Option("assistant_confidence_threshold", Probability(), _AS_CONFIGURED, "0: never",
               "End a draft after a token that the draft gave a probability below this. With a DSpark head, end it before a "
               "token that its confidence head gives less to be kept."),
        Option("tree_top_k", WholeNumber(), _SETTING, "chosen each round, by measured cost; with a number of draft tokens, 1",
               "How many continuations a draft model tries after each draft token: 1 makes chains, more make trees, of which "
               "`num_draft_tokens` counts the nodes.", page="trees.md#trees-of-a-draft-model"),
        Option("tree_depth", WholeNumber(), _SETTING, "5; where the depth is chosen by cost, 8 at most",
               "How many draft tokens may follow one another in a draft model's tree, each level a pass of it.",
               page="trees.md#trees-of-a-draft-model"),
    ),
    "Settings of one source": (
        Option("max_matching_ngram_size", WholeNumber("matches nothing: give 1 or more, or leave it out."), _AS_CONFIGURED, "3",
               "The longest run of tokens that prompt lookup looks for."),
        Option("corpus", _CORPUS, _SETTING, "none",
               "What `suffix` and `auto` copy from beside the text: files, folders, texts, or a store, which keeps answers.",
               page="no-draft-model.md"),
        Option("suffix_decoding_max_cached_requests", _REQUESTS, _SETTING, "none",
               "How many of the model's finished answers `suffix` and `auto` keep to copy from.",
               page="no-draft-model.md"),
        Option("speculation_type", Name(("dflash",)), _AS_CONFIGURED, "found by the draft's config",
               "transformers' name for the kind of `draft_model`, checked where given.", page="self-drafting.md"),
        Option("draft_window", WholeNumber("is too few to draft from: give 16 or more, or leave it out.", minimum=16), _SETTING,
               "the whole text; a window where that is longer than the draft model takes",
               "How many tokens of a text a draft model reads and keeps at most, the first four and the last ones, so that its "
               "memory and time do not grow with the text.", page="choose-a-draft.md#long-texts"),
        Option("tokenizer", _TOKENIZER, (CALL, CONFIG), "found beside the models, where their vocabularies differ",
               "The target's tokenizer, where the draft has another one; also for `stop_strings`.",
               without_draft=HANDED_ON, page="different-tokenizers.md"),
        Option("draft_tokenizer", _TOKENIZER, _SETTING, "found beside the models, where their vocabularies differ",
               "The draft's tokenizer, where its vocabulary is not the target's.",
               aliases=("assistant_tokenizer",), page="different-tokenizers.md"),
        Option("vocabulary_mapping", Name(("intersection", "strings")), _SETTING, "chosen by the vocabularies",
               "How a draft with another vocabulary proposes: tokens that both have, or text that is encoded anew.",
               page="different-tokenizers.md"),
        Option("target_lookbehind", _LENGTH, _AS_CONFIGURED, "10",
               "Tokens of the target that are encoded again to align a draft given as text.", page="different-tokenizers.md"),
        Option("assistant_lookbehind", _LENGTH, _AS_CONFIGURED, "10",
               "Tokens of the draft that are encoded again to align the target's text.", page="different-tokenizers.md"),
    ),
    "Verification": (
        Option("reproducible", Flag(BITWISE), (CALL, CONFIG), "`False`",
               "When sampling, give token for token what plain decoding gives under the same seed. 'bitwise': tokens "
               "and scores are the same bits with any draft and without, in any dtype.",
               without_draft=HOLDS, page="bitwise.md"),
        Option("lanes", WholeNumber("runs no row: give 1 or more, or leave it out."), _SETTING, "the rows of the call",
               "Rows of each pass under `reproducible='bitwise'`, where passes have one shape: an answer is the same bits in "
               "all calls with as many lanes.",
               without_draft=HOLDS, page="bitwise.md"),
        Option("rule", _RULES, _SETTING, "the one that keeps most",
               "How drafts are verified.", page="how-it-works.md#which-rule"),
        Option("draft_sample_method", Name(("auto", "probabilistic", "greedy")), _SETTING, "`auto`",
               "How draft tokens are chosen when sampling: `probabilistic`, drawn from the draft's distribution; `greedy`, its "
               "likeliest. `auto`: what would have kept more in the rounds before.", page="how-it-works.md#drawn-or-likeliest"),
        Option("allow_lossy", Flag(), _SETTING, "`False`",
               "Accept a rule that does not declare itself lossless.", page="extend.md"),
        Option("generator", _GENERATOR, _SETTING, "torch's global generator",
               "What to draw random numbers from, when sampling."),
    ),
    "Execution": (
        Option("optimize", Flag("auto"), _SETTING, "`'auto'` for an attached model; `False` in other calls",
               "How passes of both models run. On a CPU, 'auto' lets an attached model multiply by a kernel of ours and "
               "takes compiled passes once there are some, `True` compiles them now, `False` leaves passes and products as "
               "they are. On a GPU, 'auto' and `True` capture passes as CUDA graphs, `False` is eager.",
               page="optimize.md"),
    ),
    "Learning": (
        Option("learn", _LEARNER, _SETTING, "the draft stays as it is",
               "Train a copy of the draft on what is decoded, which takes over where it is accepted more often. `attach` takes "
               "True or a folder as well.", page="training.md#drafts-that-learn-in-use"),
    ),
    "One call": (
        Option("grammar", Grammars(), (CALL,), "none",
               "What the answer has to be: a JSON schema, a regular expression, a Lark grammar. Tokens that it forces are "
               "drafted without a model.", without_draft=HANDED_ON, page="structured-output.md"),
        Option("synced_gpus", Flag(), (CALL,), "where FSDP or ZeRO-3 has sharded a model",
               "Ranks wait for each other before each forward.", without_draft=HANDED_ON, page="distributed.md"),
        Option("streamer", Streamer(), (CALL,), "none",
               "What is given new tokens as they are accepted.", without_draft=HANDED_ON),
        Option("speculative_config", _CONFIG, (CALL,), "what was attached",
               "The settings that have no keyword of their own, in one object."),
    ),
}
# fmt: on

OPTIONS = tuple(option for rows in GROUPS.values() for option in rows)
#: rows by all of their names
ROWS = {name: option for option in OPTIONS for name in option.names}
#: options that a call may give; transformers' own names always
IN_CALL = tuple(name for name, option in ROWS.items() if CALL in option.places or name in option.aliases)
#: drafting options for files and command lines, without the draft model and the caller's own responsibilities
DRAFTING = tuple(
    name
    for name, option in ROWS.items()
    if name not in (*ROWS["draft_model"].names, "allow_lossy") and option.type.written_as and option.without_draft != HANDED_ON
)
#: sources of drafts, and those of them that a `generation_config` can name
SOURCES = tuple(option.name for option in OPTIONS if option.is_source)
CONFIGURED_SOURCES = tuple(name for name in SOURCES if GENERATION_CONFIG in ROWS[name].places)


def checked(name: str, value) -> Any:
    """Check the value of an option, and return it as Python's own type; `None` stays.

    Raises:
        ValueError, TypeError: it is out of range, or of another type.
    """
    return None if value is None else ROWS[name].type.checked(name, value)


def unknown_reason(name: str) -> str | None:
    """What is wrong with a keyword that neither a model nor transformers knows; `None` if it resembles no option."""
    if name in ROWS:
        return f"`{name}` is a setting: give `speculative_config=hf_speculative.SpeculativeConfig({name}=...)`."
    meant = close_to(name, IN_CALL)
    return meant and f"`{name}` is no option: did you mean `{meant}`?"


def documented(place: str) -> Callable[[T], T]:
    """Add the options of `place` to a docstring."""

    def add(thing: T) -> T:
        lines = [inspect.cleandoc(thing.__doc__ or ""), "", "Options:"]
        for option in (option for option in OPTIONS if place in option.places):
            names = ", ".join(option.names if place == CALL else (option.name,))
            lines.append(f"    {names} ({option.type.text}): {option.help} By default {option.default}.")
        thing.__doc__ = "\n".join(lines)
        return thing

    return add
