"""What was measured here, as settings of vLLM: the `--speculative-config` of `vllm serve`."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .figures import Figure, figures_of

if TYPE_CHECKING:
    from ..evaluation import Evaluation

#: where the keys below are documented: vLLM's docs/features/speculative_decoding/README.md (commit 01ed47b, "`--speculative-config`
#: schema") and the class that reads them, vllm/config/speculative.py (commit 002e77c, later than 0.26)
METHODS = ("draft_model", "ngram", "ngram_gpu", "suffix", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "dflash")
POSITIVE, ANY_SIZE = "a whole number, 1 or more", "a whole number, 0 or more"
KEYS: dict[str, Any] = {
    "method": METHODS,
    "model": str,
    "num_speculative_tokens": POSITIVE,
    "draft_tensor_parallel_size": POSITIVE,
    "max_model_len": POSITIVE,
    "quantization": str,
    "kv_cache_dtype": str,
    "attention_backend": str,
    "moe_backend": str,
    "revision": str,
    "code_revision": str,
    "enforce_eager": bool,
    "disable_padded_drafter_batch": bool,
    "parallel_drafting": bool,
    "use_heterogeneous_vocab": bool,
    "draft_sample_method": ("greedy", "probabilistic"),
    "rejection_sample_method": ("standard", "block"),
    "prompt_lookup_max": POSITIVE,
    "prompt_lookup_min": POSITIVE,
    "suffix_decoding_max_tree_depth": POSITIVE,
    "suffix_decoding_max_cached_requests": ANY_SIZE,
    "suffix_decoding_max_spec_factor": float,
    "suffix_decoding_min_token_prob": float,
}
NEEDS_MODEL = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash")
WRONG_NAMES = {"tensor_parallel_size": "draft_tensor_parallel_size", "num_draft_tokens": "num_speculative_tokens"}


def validate(config: dict[str, Any]) -> dict[str, Any]:
    """The same `config`, if vLLM documents all of it.

    Raises:
        ValueError: a key that vLLM does not document, a value it does not take, or one that is missing.
    """
    for key, value in config.items():
        if key not in KEYS:
            way_out = f"did you mean {WRONG_NAMES[key]}?" if key in WRONG_NAMES else f"the keys are {', '.join(KEYS)}."
            raise ValueError(f"vLLM's speculative config has no key {key!r}: {way_out}")
        if not _fits(value, KEYS[key]):
            raise ValueError(f"{key}={value!r}: vLLM takes {_wording(KEYS[key])} there.")
    missing = [key for key in ("method", "num_speculative_tokens") if key not in config]
    if config.get("method") in NEEDS_MODEL and "model" not in config:
        missing.append("model")
    if missing:
        raise ValueError(f"vLLM's speculative config needs {', '.join(missing)}.")
    least, most = config.get("prompt_lookup_min", 1), config.get("prompt_lookup_max")
    if most is not None and least > most:
        raise ValueError(f"prompt_lookup_min={least} is more than prompt_lookup_max={most}.")
    return config


def _fits(value: Any, kind: Any) -> bool:
    if kind in (POSITIVE, ANY_SIZE):
        return isinstance(value, int) and not isinstance(value, bool) and value >= (kind == POSITIVE)
    if isinstance(kind, tuple):
        return value in kind
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind)


def _wording(kind: Any) -> str:
    if isinstance(kind, tuple):
        return f"one of {', '.join(kind)}"
    return kind if isinstance(kind, str) else {str: "text", bool: "true or false", float: "a number"}[kind]


@dataclass(frozen=True)
class VllmSettings:
    """Settings for `vllm serve`.

    Attributes:
        target: the model to serve.
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
        return shlex.join(["vllm", "serve", self.target, "--speculative-config", json.dumps(self.config)])
