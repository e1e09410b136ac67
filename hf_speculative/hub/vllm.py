"""What was measured here, as settings of vLLM: the `--speculative-config` of `vllm serve`."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from ..measuring import Evaluation, Setting
from ..reports.pages import visible
from .figures import Evaluations, Figure, by_use_case, choose_draft, fastest, figures_of

#: methods that vLLM has, docs/features/speculative_decoding/README.md (vLLM 0.27)
METHODS = (
    "draft_model",
    "ngram",
    "suffix",
    "eagle",
    "eagle3",
    "medusa",
    "mlp_speculator",
    "mtp",
    "dflash",
    "dspark",
)
#: settings of a source that are vLLM's keys as well, by their names here
KEYS = {
    "max_matching_ngram_size": "prompt_lookup_max",
    "suffix_decoding_max_tree_depth": "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests": "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor": "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob": "suffix_decoding_min_token_prob",
}
#: what always holds here, by method as it is called here
FIXED: dict[str, dict[str, Any]] = {"ngram": {"prompt_lookup_min": 1}, "peagle": {"parallel_drafting": True}}
#: vLLM's names of methods, by those here that differ
CALLED: dict[str, str] = {"mtp_head": "mtp", "peagle": "eagle3"}


@dataclass(frozen=True)
class VllmSettings:
    """Settings for `vllm serve`.

    Attributes:
        target: the model to serve, a name on the Hub or a folder.
        config: the speculative config; `LLM(model, speculative_config=config)` takes it as it is.
        figure: the measurement that the number of tokens comes from.
        notes: what may differ there from what was measured here.
    """

    target: str
    config: dict[str, Any]
    figure: Figure
    notes: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The line for a shell."""
        # A folder may be called like an option; a model on the Hub may not.
        target = f"./{self.target}" if self.target.startswith("-") else self.target
        return shlex.join(["vllm", "serve", target, "--speculative-config", json.dumps(self.config)])


def export_vllm(
    evaluation: Evaluations,
    *,
    draft_model: str | None = None,
    temperature: float | None = None,
    target_name: str | None = None,
    draft_name: str | None = None,
    **fields: Any,
) -> VllmSettings:
    """Settings for `vllm serve` with what did best in an evaluation: a method that vLLM has, and the draft length.

    vLLM drafts the same number of tokens in every step; settings that choose it round by round are left out.

    Args:
        evaluation: what `hf_speculative.evaluate` returned, or its file.
        draft_model: only with this draft, as the evaluation names it; by default whatever did best.
        temperature: at which, where several were evaluated; by default the first.
        target_name, draft_name: other names or folders for vLLM to load them from.
        **fields: further keys of vLLM's speculative config, which come before what is chosen here; vLLM checks them.

    Raises:
        ValueError: nothing that vLLM has was measured, or all figures are noise.
    """
    found = by_use_case(evaluation)
    figures = _figures(found, draft_model)
    temperatures = list(dict.fromkeys(figure.setting.temperature for figure in figures))
    temperature = temperatures[0] if temperature is None else temperature
    if temperature not in temperatures:
        raise ValueError(f"`temperature={temperature}` was not evaluated: {', '.join(map(str, temperatures))} were.")
    figures = [figure for figure in figures if figure.setting.temperature == temperature]
    constant = [figure for figure in figures if _method(figure) in METHODS and _is_constant(figure.setting)]
    if not constant:
        raise ValueError(
            f"vLLM drafts a constant number of tokens by {', '.join(METHODS)}, and nothing like it was measured: "
            f"{', '.join(f.setting.name for f in figures)}. Evaluate with `num_draft_tokens=[2, 4, 6]` as well."
        )
    best = fastest(constant)
    if best is None:
        first = constant[0]
        raise ValueError(
            f"every figure is noise, {first.setting.name!r} with {first.speedup.noise_reason}: evaluate on a quiet machine."
        )
    header, setting = best.evaluation.header, best.setting
    num_tokens = setting.num_draft_tokens or setting.max_draft_tokens
    config: dict[str, Any] = {"method": _method(best), "num_speculative_tokens": num_tokens}
    config |= FIXED.get(_own_method(best), {})
    if setting.draft is None:
        source = setting.source({})
        told = {KEYS[name]: getattr(source, name) for name in source.options() if name in KEYS}
        config |= {key: value for key, value in told.items() if value is not None}
    else:
        config["model"] = draft_name or header["drafts"].get(setting.draft) or setting.draft
        if setting.draft in header["draft_tokenizers"]:
            config["use_heterogeneous_vocab"] = True
    target = target_name or header["target"]
    if visible(target) != target:
        raise ValueError(
            f"the target's name, {target!r}, has characters that cannot be seen: give `target_name=` (`--target-name`)."
        )
    return VllmSettings(target, config | fields, best, tuple(_notes(best, figures)))


def _figures(found: dict[str, Evaluation], draft_model: str | None) -> list[Figure]:
    """What was measured with the draft or, if none is named, with any and without one."""
    if draft_model is not None:
        draft = choose_draft(found, draft_model)
        return [figure for figure in figures_of(found, draft) if figure.setting.draft == draft]
    names = dict.fromkeys(s.draft for one in found.values() for s in one.settings if s.draft is not None)
    figures = [figure for name in names or [None] for figure in figures_of(found, name)]
    return list({(figure.use_case, figure.setting.name): figure for figure in figures}.values())


def _is_constant(setting: Setting) -> bool:
    """Whether vLLM can draft as many tokens; prompt lookup has always meant "up to", there as here."""
    schedule = setting.options.get("num_assistant_tokens_schedule", "constant")
    is_constant = setting.num_draft_tokens is not None and schedule == "constant"
    is_chain = setting.options.get("tree_top_k", 1) == 1 and "tree_depth" not in setting.options
    return (setting.max_draft_tokens is not None or is_constant) and is_chain


def _method(figure: Figure) -> str:
    """What vLLM calls where the drafts came from."""
    return CALLED.get(_own_method(figure), _own_method(figure))


def _own_method(figure: Figure) -> str:
    setting = figure.setting
    if setting.draft is None:
        return setting.source({}).method
    return figure.evaluation.header["draft_methods"][setting.draft]


def _notes(best: Figure, figures: list[Figure]) -> list[str]:
    """What may differ in vLLM from what was measured here."""
    speedup = best.speedup
    notes = [
        f"{best.setting.label} gave {speedup} plain decoding at batch size {best.evaluation.header['batch_size']} in "
        "transformers. What is accepted carries over to vLLM, what a pass costs does not: measure there, at your load."
    ]
    if speedup.is_loss:
        notes.append("Plain decoding was faster: think twice before serving with this draft.")
    elif not speedup.is_gain:
        notes.append("That is too close to plain decoding, or from too few prompts, to tell that it is faster.")
    if fastest(figures) is not best:
        notes.append("What vLLM does not have was faster still: another method, or a length chosen round by round.")
    if best.setting.temperature and best.setting.draft is not None:
        notes.append("Drafts were sampled here; vLLM drafts greedily unless told `draft_sample_method=probabilistic`.")
    return notes
