"""Batch inference on a cluster: a callable class that answers a batch of rows, made for actors of Ray Data.

It imports no Ray: whatever hands over batches as columns can call it (docs/data-sets.md). A file to copy beside your own job.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_speculative.batches import Completion, generate_batches
from hf_speculative.call.checks import unwrap
from hf_speculative.call.configuration import setting_of
from hf_speculative.call.option_table import DRAFTS, SOURCES
from hf_speculative.call.preparation import load_draft
from hf_speculative.call.prompts import prompt_ids
from hf_speculative.embedded import FOLDER
from hf_speculative.models import device_of
from hf_speculative.models.loading import load_model
from hf_speculative.tokenizers.loading import tokenizer_of, tokenizer_of_draft
from hf_speculative.types import NoDistribution

#: what can be wrong with a row; anything else, a device that fails for example, is the actor's and is raised
ROW_ERRORS = (ValueError, TypeError, IndexError, NoDistribution, torch.OutOfMemoryError)
#: the new columns
COLUMNS: dict[str, type] = {
    "generated_text": object,
    "num_new_tokens": np.int64,
    "num_spec_steps": np.int64,
    "num_draft_tokens": np.int64,
    "num_accepted_draft_tokens": np.int64,
    "draft_acceptance_rate": np.float64,
    "error": object,
}


class SpeculativePredictor:
    """Continues the prompts of a batch, with the counts of each row.

    dataset.map_batches(SpeculativePredictor, fn_constructor_kwargs={"max_new_tokens": 64}, batch_size=32,
                        compute=ray.data.ActorPoolStrategy(size=2))

    The models are loaded once, when the object is made. A batch is a mapping of columns; the result has these columns and

    * `generated_text`: the new tokens as text, without special tokens;
    * `num_new_tokens`, `num_spec_steps`, `num_draft_tokens`, `num_accepted_draft_tokens`: counts, so that totals are sums;
    * `draft_acceptance_rate`: of this row; nan if nothing was drafted;
    * `error`: what was wrong with the row, which then has no text; empty otherwise.

    A row that cannot be answered does not affect the others.

    For sampling, a batch is seeded by `seed` and its own content. So if it is answered again, for example because an actor
    died, it gets the same answers. For that, `reproducible=True` is the default here: a draft length chosen by the clock then
    changes no token. Batches that are equal in all columns get equal answers: to answer prompts several times, add a column
    that differs.

    Args:
        model: the target, or its name. Default: the embedded pair.
        draft_model: as in `generate`; may be left out if `generate_kwargs` name another source.
        tokenizer: the model's tokenizer, or its name. Default: loaded by the model's name.
        prompt_column: the column of the prompts: texts, lists of messages or of ids.
        batch_size: rows that run together; when one is done, the next one takes its place. A batch to be answered should
            have several times as many rows.
        seed: for all sampling.
        dtype: for models given by name, as in `from_pretrained`.
        device: for models given by name. Default: a GPU if there is one.
        **generate_kwargs: as in `hf_speculative.generate_batches`, such as `max_new_tokens`.

    Raises:
        ValueError, TypeError: for settings, when the object is made.
    """

    def __init__(
        self,
        model: PreTrainedModel | str | None = None,
        draft_model: PreTrainedModel | str | None = None,
        *,
        tokenizer: PreTrainedTokenizerBase | str | None = None,
        prompt_column: str = "prompt",
        batch_size: int = 8,
        seed: int = 0,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | None = None,
        **generate_kwargs,
    ):
        is_method = DRAFTS.is_method(draft_model)
        if model is None:
            if (draft_model is not None and not is_method) or tokenizer is not None:
                raise ValueError("`draft_model` and `tokenizer` go with a `model`: give it, or none for the embedded pair.")
            model, dtype = str(FOLDER / "target"), dtype or torch.float32
            if not is_method and not generate_kwargs.keys() & {*SOURCES}:
                draft_model = str(FOLDER / "draft")
        if not isinstance(model, str) and (dtype is not None or device is not None):
            raise ValueError("`dtype` and `device` are for a `model` given by name: leave them out.")
        if tokenizer is None:
            tokenizer = model if isinstance(model, str) else tokenizer_of(unwrap(model, "model"))
        if isinstance(model, str):
            model = load_model(model, dtype=dtype or "auto").to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        draft_name = draft_model if isinstance(draft_model, str) and not is_method else None
        draft_model = load_draft(draft_model, unwrap(model, "model"))
        self.model, self.prompt_column, self.seed = model, prompt_column, seed
        self.tokenizer = AutoTokenizer.from_pretrained(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self.settings = {"tokenizer": self.tokenizer, "batch_size": batch_size, **generate_kwargs}
        if draft_model is not None:
            self.settings["draft_model"] = draft_model
        if draft_name is not None and "assistant_tokenizer" not in generate_kwargs:
            other = tokenizer_of_draft(draft_name, self.tokenizer)
            self.settings |= {} if other is None else {"assistant_tokenizer": other}
        if self._samples() and not {"reproducible", "speculative_config"} & generate_kwargs.keys():
            self.settings["reproducible"] = True
        generate_batches(self.model, [], **self.settings)
        self._try_one_token()

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Answer one batch.

        Args:
            batch: columns of equal length, `(rows,)` or more dimensions, `prompt_column` among them.

        Raises:
            KeyError: there is no such column.
        """
        if self.prompt_column not in batch:
            raise KeyError(f"`prompt_column={self.prompt_column!r}` is not among the columns {', '.join(batch)}.")
        answers = self._answers([_plain(prompt) for prompt in batch[self.prompt_column]], _digest(batch))
        columns: dict[str, np.ndarray] = {
            name: np.array([answer[name] for answer in answers], dtype) for name, dtype in COLUMNS.items()
        }
        return {**batch, **columns}

    def _answers(self, prompts: Sequence, key: str) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = [{}] * len(prompts)
        ids: dict[int, list[int]] = {}
        for row, prompt in enumerate(prompts):
            try:
                ids[row] = prompt_ids(prompt, row, unwrap(self.model, "model"), self.tokenizer)
            except ROW_ERRORS as error:
                answers[row] = _failure(error)
        try:
            for row, completion in zip(ids, self._complete(list(ids.values()), key), strict=True):
                answers[row] = _success(completion)
        except ROW_ERRORS:  # of some row: each is tried by itself
            for row, prompt in ids.items():
                try:
                    answers[row] = _success(*self._complete([prompt], f"{key} {row}"))
                except ROW_ERRORS as error:
                    answers[row] = _failure(error)
        return answers

    def _complete(self, prompts: list[list[int]], key: str, **settings) -> list[Completion]:
        device = device_of(self.model)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(int(hashlib.sha256(f"{self.seed} {key}".encode()).hexdigest()[:15], 16))
            return list(generate_batches(self.model, prompts, **self.settings | settings))

    def _try_one_token(self) -> None:
        """A setting that transformers refuses raises now, not as the error of every row."""
        longest = self.settings.get("max_new_tokens")
        shortened = {"max_new_tokens": 1 if longest is None else min(1, longest), "min_new_tokens": None}
        self._complete([[self.tokenizer.eos_token_id or 0]], "", **shortened)

    def _samples(self) -> bool:
        return bool(setting_of(self.model, self.settings, "do_sample"))


def _plain(prompt):
    """A cell as `generate_batches` takes it: arrays become lists, numpy's strings Python's."""
    return prompt.tolist() if isinstance(prompt, (np.ndarray, np.str_)) else prompt


def _digest(batch: Mapping[str, np.ndarray]) -> str:
    """The same for the same rows in the same order, in any process."""
    content = {name: np.asarray(column).tolist() for name, column in batch.items()}
    return hashlib.sha256(repr(sorted(content.items())).encode()).hexdigest()


def _success(completion: Completion) -> dict[str, Any]:
    own = {"generated_text": completion.text, "num_new_tokens": len(completion.new_ids), "error": ""}
    return own | {name: getattr(completion.statistics, name) for name in COLUMNS if name not in own}


def _failure(error: Exception) -> dict[str, Any]:
    own = {"generated_text": "", "draft_acceptance_rate": float("nan"), "error": f"{type(error).__name__}: {error}"}
    return dict.fromkeys(COLUMNS, 0) | own
