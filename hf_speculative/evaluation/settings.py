"""Ways to decode that are compared: plain, drafts, draft lengths, prompt lookup, temperatures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..call import checks
from ..call.options import CONFIGURED_SOURCES, DRAFTING_OPTIONS
from ..verification import RULES, rule_for

#: what a setting says by fields of its own
LENGTHS_AND_SOURCES = ("num_draft_tokens", "num_assistant_tokens", *CONFIGURED_SOURCES)
#: and what it may say beside them
OPTIONS = tuple(name for name in DRAFTING_OPTIONS if name not in LENGTHS_AND_SOURCES)


@dataclass(frozen=True)
class Setting:
    """One way to decode; without a draft and without prompt lookup, plain decoding.

    Attributes:
        draft: the name of a draft, among those the evaluation knows.
        num_draft_tokens: tokens drafted a round; `None`: chosen round by round, by measured cost.
        prompt_lookup_num_tokens: draft by copying from the text instead, up to so many tokens.
        temperature: 0 is greedy.
        options: anything else about drafting, as JSON knows it, `{"num_assistant_tokens_schedule": "heuristic"}`, or
            `{"rule": "token"}`. What changes plain decoding as well is a keyword of `evaluate`.
    """

    draft: str | None = None
    num_draft_tokens: int | None = None
    prompt_lookup_num_tokens: int | None = None
    temperature: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self):
        if self.draft is not None and self.prompt_lookup_num_tokens is not None:
            raise ValueError(f"{self}: `draft` and `prompt_lookup_num_tokens` are two sources of drafts, give one.")
        if self.draft is None and self.num_draft_tokens is not None:
            raise ValueError(f"{self}: `num_draft_tokens` has no effect without `draft`, leave it out.")
        for name in ("num_draft_tokens", "prompt_lookup_num_tokens"):
            if getattr(self, name) is not None:
                checks.check_positive_int(name, getattr(self, name))
        other = sorted(self.options.keys() - set(OPTIONS))
        if other:
            raise ValueError(
                f"`options={{{other[0]!r}: {self.options[other[0]]!r}}}` is not about drafting: what holds for plain decoding "
                f"as well is a keyword of `evaluate`, and a setting's own options are {', '.join(OPTIONS)}."
            )
        if not isinstance(self.options.get("rule", ""), str):
            raise TypeError(f"`options={{'rule': {self.options['rule']!r}}}`: give its name, {', '.join(RULES)}.")
        rule_for(self.options.get("rule"))
        if self.is_plain and self.options:
            raise ValueError(
                f"{self}: `options` has no effect without `draft` or `prompt_lookup_num_tokens`, leave it out."
            )
        temperature = self.temperature
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not temperature >= 0:
            raise ValueError(f"`temperature={temperature!r}`: give 0 for greedy decoding, or a positive number.")

    @property
    def is_plain(self) -> bool:
        return self.draft is None and self.prompt_lookup_num_tokens is None

    @property
    def label(self) -> str:
        """What to call it beside others of the same temperature."""
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        if self.is_plain:
            return f"plain{options}"
        if self.draft is None:
            return f"prompt lookup, up to {self.prompt_lookup_num_tokens} tokens{options}"
        length = "adaptive length" if self.num_draft_tokens is None else f"{self.num_draft_tokens} tokens"
        return f"{self.draft}, {length}{options}"

    @property
    def name(self) -> str:
        """The same with the temperature: one of a kind."""
        return f"{self.label}, {temperature_name(self.temperature)}"

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """Keywords of `generate`, but the draft."""
        kwargs: dict[str, Any] = {"do_sample": False}
        if self.temperature:
            kwargs = {"do_sample": True, "temperature": float(self.temperature)}
        for name in ("num_draft_tokens", "prompt_lookup_num_tokens"):
            if getattr(self, name) is not None:
                kwargs[name] = getattr(self, name)
        return kwargs | dict(self.options)

    @property
    def is_exact(self) -> bool:
        """The output is the baseline's, token for token, and not only in distribution."""
        return not self.generate_kwargs["do_sample"] or bool(self.options.get("reproducible"))

    @property
    def is_compiled(self) -> bool:
        """Its passes are compiled or captured, so that one may cost less than plain decoding's."""
        return bool(self.options.get("compile") or self.options.get("cuda_graphs"))

    @property
    def baseline(self) -> Setting:
        """Plain decoding at the same temperature."""
        return Setting(temperature=self.temperature)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def temperature_name(temperature: float) -> str:
    return f"T={temperature:g}" if temperature else "greedy"


def grid(
    drafts: Iterable[str],
    num_draft_tokens: Iterable[int | None],
    prompt_lookup_num_tokens: Iterable[int] = (),
    temperatures: Iterable[float] = (0.0,),
    options: Mapping[str, Any] | None = None,
) -> list[Setting]:
    """Every draft at every length, and every prompt lookup, at every temperature.

    Raises:
        TypeError: a value in place of a list of values.
    """
    for name, values in (
        ("num_draft_tokens", num_draft_tokens),
        ("prompt_lookup_num_tokens", prompt_lookup_num_tokens),
        ("temperatures", temperatures),
    ):
        if not isinstance(values, Iterable) or isinstance(values, str):
            raise TypeError(f"`{name}={values!r}` is not a list of values: give `{name}=[{values!r}]`.")
    drafts, lengths, lookups = list(drafts), list(num_draft_tokens), list(prompt_lookup_num_tokens)
    settings = []
    for temperature in temperatures:
        common: dict[str, Any] = {"temperature": temperature, "options": options or {}}
        settings += [Setting(draft, length, **common) for draft in drafts for length in lengths]
        settings += [Setting(prompt_lookup_num_tokens=lookup, **common) for lookup in lookups]
    return settings


def with_baselines(settings: Iterable[Setting]) -> list[Setting]:
    """The settings, each once, and plain decoding in front of those of each temperature.

    Raises:
        ValueError: there is nothing to compare, or two settings have one name.
    """
    settings = [setting for setting in settings if not setting.is_plain]
    if not settings:
        raise ValueError("nothing to evaluate: give a draft model, `prompt_lookup_num_tokens`, or `settings`.")
    names = [setting.name for setting in settings]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"settings given twice: {', '.join(sorted(twice))}.")
    temperatures = dict.fromkeys(setting.temperature for setting in settings)
    return [s for t in temperatures for s in (Setting(temperature=t), *(s for s in settings if s.temperature == t))]
