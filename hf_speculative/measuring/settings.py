"""Settings to compare: plain decoding, sources of drafts with their options, and rivals, at several temperatures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call import checks
from ..call.attached import attached_to
from ..call.configuration import as_keywords
from ..call.option_table import DRAFTING, DRAFTS, ROWS, SOURCES, checked
from ..call.preparation import load_draft
from ..call.sources import asked_with, source_of
from ..drafting.source import DraftSource
from ..tokenizers.loading import tokenizer_of_draft


@dataclass(frozen=True)
class NamedDraft:
    """A draft of an evaluation.

    Attributes:
        model: a model, or a source of drafts.
        tokenizer: its own, if its vocabulary is not the target's.
        source: its Hub name or folder, `""` if unknown.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase | None = None
    source: str = ""

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        tokenizer = {} if self.tokenizer is None else {"assistant_tokenizer": self.tokenizer}
        return {"draft_model": self.model, **tokenizer}


#: a model, the name of a model or method, a list of these, or models by names of the user's
Drafts: TypeAlias = (
    "PreTrainedModel | str | Sequence[PreTrainedModel | str] | Mapping[str, PreTrainedModel | NamedDraft | str] | None"
)


def named_drafts(
    given: Drafts,
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    draft_tokenizers: Mapping[str, PreTrainedTokenizerBase],
) -> tuple[dict[str, NamedDraft], list[str]]:
    """Return the drafts by name, and methods that need no draft model. Default: what is attached.

    Raises:
        ValueError: two have the same name, or a tokenizer belongs to no draft.
    """
    if given is None:
        given, config = attached_to(target)
        own = None if config is None else config.draft_tokenizer
        if isinstance(given, PreTrainedModel) and own is not None:
            draft_tokenizers = {_name(given): own, **draft_tokenizers}
        elif given is not None and not isinstance(given, (str, PreTrainedModel)):
            given = {"attached": NamedDraft(given, own)}  # tables, a drafter, or several sources
    methods: list[str] = []
    if given is None:
        pairs: list[tuple[str, PreTrainedModel | NamedDraft | str]] = []
    elif isinstance(given, Mapping):
        pairs = list(given.items())
        for name in filter(DRAFTS.is_method, given):
            raise ValueError(f"a draft is called {name!r}, which is a method: give it another name.")
    else:
        models = list(given) if isinstance(given, (list, tuple)) else [given]
        methods = [str(model) for model in models if DRAFTS.is_method(model)]
        pairs = [(_name(model), model) for model in models if not DRAFTS.is_method(model)]
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"two drafts are called {', '.join(names)}: pass `draft_model={{name: model}}`.")
    if unknown := sorted(draft_tokenizers.keys() - set(names)):
        raise ValueError(f"`draft_tokenizers` names {', '.join(unknown)}, the drafts are {', '.join(names) or 'none'}.")
    drafts = {name: _draft(model, target, tokenizer, draft_tokenizers.get(name)) for name, model in pairs}
    return drafts, methods


def _draft(given, target, tokenizer, draft_tokenizer) -> NamedDraft:
    if isinstance(given, NamedDraft):
        return given
    if draft_tokenizer is None and isinstance(given, str):
        draft_tokenizer = tokenizer_of_draft(given, tokenizer)
    model: Any = load_draft(given, target)
    checks.check_source(source_of("draft_model", model), checks.unwrap(target, "model"))
    source = given if isinstance(given, str) else getattr(getattr(model, "config", None), "name_or_path", "")
    return NamedDraft(model, draft_tokenizer, source)


def _name(model: PreTrainedModel | str) -> str:
    if isinstance(model, str):
        return model
    model = checks.unwrap(model, "draft_model")
    checks.check_type(model, "draft_model")
    return Path(model.config.name_or_path).name or "draft"


#: options that a setting may have
OPTIONS = ("draft_model", *DRAFTING)


@dataclass(frozen=True, init=False)
class Setting:
    """One way to decode: `Setting(draft_model="small", num_draft_tokens=4)`, `Setting(draft_model="suffix")`.

    Args:
        temperature: 0 is greedy.
        rival: the name of one of the evaluation's rivals; the only other option is then `num_draft_tokens`.
        **options: about drafting, ready for JSON. `draft_model` is the name of one of the evaluation's drafts, or a method
            that needs none. Without `num_draft_tokens` the length is adaptive. Without a source of drafts the setting is plain
            decoding. Options that change plain decoding as well are keywords of `evaluate`.

    Raises:
        ValueError, TypeError: an option that is out of range, has no effect, or is not about drafting; two sources.
    """

    temperature: float
    options: Mapping[str, Any] = field(hash=False)
    rival: str | None = None

    def __init__(self, *, temperature: float = 0.0, rival: str | None = None, **options):
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not temperature >= 0:
            raise ValueError(f"`temperature={temperature!r}`: give 0 for greedy decoding, or a positive number.")
        known: dict[str, Any] = {}
        for name, value in options.items():
            if name not in OPTIONS:
                others = f"what holds for plain decoding too is a keyword of `evaluate`, the others are {', '.join(OPTIONS)}"
                raise ValueError(f"`{name}={value!r}` is not about drafting: {others}.")
            value = checked(name, value)
            if not isinstance(value, (str, int, float, type(None))):
                raise TypeError(f"`{name}={value!r}` is an object, which no file can hold: give its name.")
            if value is not None and not (ROWS[name].is_source and value is False):
                known[ROWS[name].name] = value
        sources = [name for name in SOURCES if name in known]
        if len(sources) > 1:
            raise ValueError(f"{' and '.join(f'`{name}`' for name in sources)} are two sources of drafts: give one.")
        if rival is not None and known.keys() - {"num_draft_tokens"}:
            raise ValueError(f"`rival={rival!r}` beside {', '.join(known)}: a rival takes `num_draft_tokens` only.")
        if known and not sources and rival is None:
            raise ValueError(f"`{next(iter(known))}` has no effect without a source of drafts: name one.")
        vars(self).update(temperature=temperature, options=known, rival=rival)  # it is frozen

    @property
    def argument(self) -> str | None:
        """The keyword that asks for its source of drafts; `None` for plain decoding."""
        return next((name for name in SOURCES if name in self.options), None)

    @property
    def is_plain(self) -> bool:
        return self.argument is None and self.rival is None

    @property
    def is_ours(self) -> bool:
        """Whether this package drafts: it is neither plain decoding nor a rival."""
        return self.argument is not None

    @property
    def draft(self) -> str | None:
        """The name of its draft model, if it has one."""
        return DRAFTS.split(self.options.get("draft_model"))[0]

    @property
    def num_draft_tokens(self) -> int | None:
        return self.options.get("num_draft_tokens")

    def source(self, drafts: Mapping[str, NamedDraft]) -> DraftSource:
        """Its source of drafts, by the options of the setting alone.

        Args:
            drafts: the draft models of the evaluation.
        """
        assert self.argument is not None  # plain decoding has none
        value = self.options[self.argument] if self.draft is None else drafts[self.draft].model
        return source_of(self.argument, value, dict(self.options))

    @property
    def max_draft_tokens(self) -> int | None:
        """The most draft tokens, where its source is asked for by that number."""
        return None if not self.is_ours or self.draft is not None else self.source({}).num_draft_tokens

    @property
    def length(self) -> str:
        """The draft length in words."""
        if self.max_draft_tokens is not None:
            return f"up to {self.max_draft_tokens} tokens"
        if self.num_draft_tokens is None:
            return "adaptive length" if self.is_ours else ""
        return f"{self.num_draft_tokens} tokens"

    @property
    def shown_options(self) -> dict[str, Any]:
        """`options` for reports: a corpus by its name, without folders of this machine."""
        corpus = {"corpus": PurePath(self.options["corpus"]).name} if "corpus" in self.options else {}
        return {**self.options, **corpus}

    @property
    def label(self) -> str:
        """Its name among settings of the same temperature."""
        if self.is_plain:
            return "plain"
        named = (self.argument, "num_draft_tokens")
        others = (f"{name}={value}" for name, value in self.shown_options.items() if name not in named)
        drafter = self.rival or self.draft or self.source({}).label
        return ", ".join(filter(None, (drafter, self.length, *others)))

    @property
    def name(self) -> str:
        """The label with the temperature: a unique name."""
        return f"{self.label}, {temperature_name(self.temperature)}"

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """Keywords of `generate`, the draft model by its name."""
        kwargs: dict[str, Any] = {"do_sample": False}
        if self.temperature:
            kwargs = {"do_sample": True, "temperature": float(self.temperature)}
        return kwargs | as_keywords(self.options)

    @property
    def is_exact(self) -> bool:
        """The output equals the baseline's token for token, not only in distribution."""
        return not self.temperature or bool(self.options.get("reproducible"))

    @property
    def baseline(self) -> "Setting":
        """Plain decoding at the same temperature."""
        return Setting(temperature=self.temperature)

    def to_dict(self) -> dict[str, Any]:
        """Keywords that make it again, ready for JSON."""
        rival = {} if self.rival is None else {"rival": self.rival}
        return {**rival, **self.options, "temperature": self.temperature}


def temperature_name(temperature: float) -> str:
    return f"T={temperature:g}" if temperature else "greedy"


def grid(
    drafts: Mapping[str, NamedDraft],
    sources: Mapping[str, Iterable[Any]],
    num_draft_tokens: Iterable[int | None],
    temperatures: Iterable[float] = (0.0,),
    options: Mapping[str, Any] | None = None,
) -> list[Setting]:
    """Every source of drafts, at every length unless it brings its own, at every temperature.

    Args:
        sources: for keywords that ask for a source, the values of each.
        options: each for the sources that it is about.

    Raises:
        TypeError: a value in place of a list of values.
        ValueError: an option is about none of the sources.
    """
    lists = {"num_draft_tokens": num_draft_tokens, "temperatures": temperatures, **sources}
    for name, values in lists.items():
        if not isinstance(values, Iterable) or isinstance(values, str):
            raise TypeError(f"`{name}={values!r}` is not a list of values: give `{name}=[{values!r}]`.")
    named = {"draft_model": (), **sources} | {"draft_model": [*drafts, *sources.get("draft_model", ())]}
    asked = [Setting(**{name: one}) for name, values in named.items() for one in values]
    lengths, options, kinds = list(num_draft_tokens), options or {}, []
    used: set[str] = set()
    for setting in asked:
        source = setting.source(drafts)
        own = {name: options[name] for name in options if name in source.options() or not asked_with(name)}
        used |= own.keys()
        for length in [None] if source.num_draft_tokens is not None else lengths:
            kinds.append({**setting.options, "num_draft_tokens": length, **own})
    for name in options.keys() - used if kinds else ():
        raise ValueError(f"`{name}={options[name]!r}` has no effect on any of these sources of drafts: leave it out.")
    return [Setting(temperature=temperature, **kind) for temperature in temperatures for kind in kinds]


def with_baselines(settings: Iterable[Setting]) -> list[Setting]:
    """The settings, each once, and plain decoding in front of those of each temperature.

    Raises:
        ValueError: there is nothing to compare, or two settings have one name.
    """
    settings = [setting for setting in settings if not setting.is_plain]
    if not settings:
        raise ValueError("nothing to evaluate: give `draft_model`, `'auto'` if you have none, or `settings`.")
    names = [setting.name for setting in settings]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"settings given twice: {', '.join(twice)}.")
    temperatures = dict.fromkeys(setting.temperature for setting in settings)
    return [s for t in temperatures for s in (Setting(temperature=t), *(s for s in settings if s.temperature == t))]
