"""lm-eval's `hf` model with a draft: the same scores, sooner.

`generate_until` tasks are decoded speculatively; likelihoods need the target alone. Importing this module registers the model
as `hf-speculative`; `python -m hf_speculative.integrations.lm_eval` is lm-eval's own command with it (docs/data-sets.md).
"""

import inspect
import logging
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

try:
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
except ImportError as error:
    raise ImportError("lm-eval is not installed: pip install 'hf_speculative[lm-eval]'") from error

from ...call.attached import attached_to
from ...call.checks import unwrap
from ...call.configuration import as_keywords
from ...call.option_table import DRAFTING, DRAFTS, ROWS
from ...call.option_types import close_to
from ...call.preparation import prepare
from ...call.statistics import Statistics, record
from ...generation import generate
from ...models import device_of
from ...models.loading import check_name, load_model
from ...tokenizers.loading import tokenizer_of_draft

#: a child of lm-eval's, whose verbosity the user sets
logger = logging.getLogger("lm_eval.hf_speculative")

#: of the draft itself, read here
DRAFT_OPTIONS = (*ROWS["draft_model"].names, *ROWS["draft_tokenizer"].names)


@register_model("hf-speculative")
class SpeculativeLM(HFLM):
    """lm-eval's `HFLM` that generates with a draft.

    Args:
        pretrained: the target, as in `HFLM`: a name, a folder or a model.
        draft_model: a smaller model, the name of one, or a method as `auto`; `assistant_model` means the same. By name, it is
            loaded in the target's dtype.
        draft_tokenizer: if the draft's vocabulary differs; found by the draft's name, if it was given by name.
        **kwargs: what `hf_speculative.call.option_table.DRAFTING` names, as in `hf_speculative.generate`, and anything
            that `HFLM` takes. A task's `generation_kwargs` may name the former, too, and come first.

    Attributes:
        statistics: counts over all `generate_until` requests so far, summed over processes.

    Raises:
        ValueError, TypeError: no source of drafts, an option without effect, or a misspelt one; before any request.
    """

    def __init__(self, pretrained: str | PreTrainedModel, **kwargs):
        options = {name: value for name in DRAFTING if (value := kwargs.pop(name, None)) is not None}
        of_draft = {name: kwargs.pop(name, None) for name in DRAFT_OPTIONS}
        for own, alias in (ROWS["draft_model"].names, ROWS["draft_tokenizer"].names):
            if of_draft[own] is not None and of_draft[alias] is not None:
                raise ValueError(f"`{own}` and `{alias}` mean the same: give one of them.")
        draft_model = of_draft["draft_model"] or of_draft["assistant_model"]
        _check_names(pretrained, kwargs)
        loading = {"trust_remote_code": bool(kwargs.get("trust_remote_code"))}
        # A name that leads nowhere is met here, before the target takes minutes to load.
        is_named = isinstance(draft_model, str) and not DRAFTS.is_method(draft_model)
        if is_named:
            check_name(draft_model, **loading)
        super().__init__(pretrained, **kwargs)

        draft_tokenizer = of_draft["draft_tokenizer"] or of_draft["assistant_tokenizer"]
        self.draft_name = draft_model if isinstance(draft_model, str) else getattr(draft_model, "name_or_path", None)
        target = unwrap(self.model, "pretrained")
        if is_named:
            draft_tokenizer = draft_tokenizer or tokenizer_of_draft(draft_model, self.tokenizer, **loading)
            draft_model = load_model(draft_model, dtype=target.dtype, **loading).to(device_of(target))
        if isinstance(draft_tokenizer, str):
            draft_tokenizer = AutoTokenizer.from_pretrained(draft_tokenizer)
        self.settings = dict(options)
        options |= {} if draft_model is None else {"draft_model": draft_model}
        if draft_tokenizer is not None:
            options |= {"tokenizer": self.tokenizer, "draft_tokenizer": draft_tokenizer}
        # A wrong option raises now, not after hours of likelihoods.
        if prepare(target, as_keywords(options), *attached_to(target)) is None:
            raise ValueError("`hf-speculative` has no source of drafts: give `draft_model=`, auto if you have none.")
        self._speculating = _Speculating(self.model, options)
        self._generates = False
        self.statistics = Statistics()

    @property
    def model(self):
        """The target; while `HFLM` generates, a stand-in whose `generate` has a draft."""
        return self._speculating if getattr(self, "_generates", False) else super().model

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        with record() as counted:
            texts = super().generate_until(requests, disable_tqdm=disable_tqdm)
        for statistics in gather_object([counted]):
            self.statistics += statistics
        if self.rank == 0:
            own = self.statistics
            passes = f"{own.num_new_tokens} tokens in {own.num_target_forwards} target passes"
            kept = f"{100 * own.draft_acceptance_rate:.1f}% of the draft tokens accepted"
            length = f"{own.mean_acceptance_length:.2f} tokens a speculative step (bonus token included)"
            logger.info("%s, %s, %s", passes, kept, length)
        return texts

    def get_model_info(self) -> dict:
        """What lm-eval saves as `config` beside the results, with the draft, its settings and the statistics."""
        statistics = self.statistics.to_dict()
        del statistics["rows"]  # one entry a request
        own = {"draft_model": self.draft_name, "settings": self.settings, "statistics": statistics}
        return super().get_model_info() | {"speculative_decoding": own}

    def _model_generate(self, context, max_length: int, stop: list[str], **generation_kwargs) -> Tensor:
        self._generates = True
        try:
            return super()._model_generate(context, max_length=max_length, stop=stop, **generation_kwargs)
        finally:
            self._generates = False


class _Speculating:
    """Stands in for the target while `HFLM` calls its `generate`."""

    def __init__(self, model: PreTrainedModel, options: dict[str, Any]):
        self.model, self.options = model, options

    def generate(self, stopping_criteria=(), **kwargs) -> Tensor:
        criteria = [EachRow(one) if hasattr(one, "done_tracker") else one for one in stopping_criteria]
        is_plain = any(kwargs.get(name, self) is None for name in ROWS["draft_model"].names)
        options = kwargs if is_plain else as_keywords(self.options | kwargs)
        return generate(self.model, stopping_criteria=StoppingCriteriaList(criteria), **options)

    def __getattr__(self, name: str):
        return getattr(self.model, name)


class EachRow(StoppingCriteria):
    """lm-eval's criterion for an `until` string, asked for each row separately.

    Asked for the whole batch, it ends no row before the string was found in all of them. That changes no score, since text
    after the string is cut off, but costs passes. Here a row ends where it would in a batch of one.
    """

    def __init__(self, criterion: StoppingCriteria):
        self.criterion = criterion

    def __call__(self, input_ids: Tensor, scores, **kwargs) -> Tensor:
        # A batch may be one row, expanded: see sampling/stopping.py.
        rows = input_ids[:1] if input_ids.stride(0) == 0 else input_ids
        answers = [self._ends(row) for row in rows]
        return torch.tensor(answers, device=input_ids.device).expand(input_ids.shape[0])

    def clone(self) -> "EachRow":
        """Rows need no copies: nothing is remembered from one token to the next."""
        return self

    def _ends(self, row: Tensor) -> bool:
        self.criterion.done_tracker = [False]  # type: ignore[attr-defined]
        return bool(self.criterion(row[None], None))


def _check_names(pretrained, kwargs: dict[str, Any]) -> None:
    """`HFLM` passes unknown keywords to `from_pretrained`, and drops them if the model is loaded already."""
    for name in sorted(kwargs.keys() - inspect.signature(HFLM.__init__).parameters.keys()):
        if meant := close_to(name, (*DRAFTING, *DRAFT_OPTIONS)):
            raise TypeError(f"`{name}={kwargs[name]!r}` is no option: did you mean `{meant}`?")
        if not isinstance(pretrained, str):
            raise TypeError(f"`{name}={kwargs[name]!r}` has no effect on a model that is loaded already: leave it out.")
