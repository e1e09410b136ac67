"""Training with transformers' Trainer: evaluation that generates with a draft, its statistics logged like any metric."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, Seq2SeqTrainer, trainer_seq2seq
from transformers.utils import is_accelerate_available

from ..call import checks
from ..call.attached import Attached, attached_to, own_generate
from ..call.configuration import SpeculativeConfig, first_given
from ..call.preparation import prepare
from ..call.statistics import Statistics, record
from ..generation import attach
from ..models import pool
from ..models.shallow import REPLACED

if not is_accelerate_available():
    raise ImportError("transformers' Trainer needs accelerate: pip install 'hf_speculative[accelerate]'")

if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object


class SpeculativeTrainerMixin(_Trainer):
    """Evaluation that generates with a draft, at any batch size, for a Trainer of your own.

    class MyTrainer(SpeculativeTrainerMixin, Trainer): ...

    `evaluate` and `predict` generate with `predict_with_generate=True`, and always with arguments that lack this field. Unlike
    `Seq2SeqTrainer`, they do so even without `compute_metrics`.

    What speculation did is logged with the other metrics, as `eval_draft_acceptance_rate`, `eval_mean_acceptance_length` (bonus
    token included), `eval_num_spec_steps`, `eval_num_draft_tokens`, `eval_num_accepted_draft_tokens`,
    `eval_num_target_forwards` and `eval_tokens_per_second` (docs/training.md). Counts are summed over all processes and rates
    computed from the sums; if nothing was drafted, the rates are left out.

    Encoder-decoder models are evaluated as by `Seq2SeqTrainer`, but their `generation_config` stays as it is. For decoder-only
    models, a row's prompt is everything before its first label; Predictions are the new tokens, and the label ids given to
    `compute_metrics` are the labels from the first one on: both begin in column 0.

    Args:
        draft_model: a smaller model, or the name of one; moved to the trainer's device, never trained. Default: the draft
            attached to the model, or a source that `generation_kwargs` name.
        speculative_config: further settings, as in `hf_speculative.attach`.
        generation_kwargs: keywords of `generate` for every evaluation; those of `evaluate(..., **gen_kwargs)` come first, and
            `evaluate(draft_model=None)` is plain.

    Raises:
        ValueError, TypeError: as `attach`, when the trainer is made; a draft that evaluation would not use.
    """

    def __init__(
        self,
        *args,
        draft_model: PreTrainedModel | str | None = None,
        speculative_config: SpeculativeConfig | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        **kwargs,
    ):
        self.draft_model, self.speculative_config = draft_model, speculative_config
        self.generation_kwargs = dict(generation_kwargs or {})
        super().__init__(*args, **kwargs)
        names = ("draft_model", "speculative_config", "generation_kwargs")
        useless = [f"`{name}`" for name in names if getattr(self, name)]
        if useless and not self._generates:
            way_out = "set `predict_with_generate=True` and `prediction_loss_only=False` in the arguments, or leave it out"
            raise ValueError(f"{', '.join(useless)} has no effect on an evaluation that does not generate: {way_out}.")
        with self._with_draft() as model:  # what is wrong with the draft is said now, not after an epoch
            if generation_kwargs:
                prepare(model, self._generate_kwargs(), *attached_to(model))

    def generation_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What `generate` gets of an evaluation batch; override it for prompts of another kind.

        Args:
            inputs: the batch as the collator made it, on the model's device.

        Returns:
            Keywords of `generate`: for a decoder-only model, `input_ids (batch, width)` left-padded and their `attention_mask`.
        """
        if self.model.config.is_encoder_decoder:
            dropped = ("labels", "decoder_input_ids", "decoder_attention_mask")
            return {name: value for name, value in inputs.items() if name not in dropped}
        configs = (getattr(self, "processing_class", None), self.model.generation_config)
        return prompts_of(inputs, first_given(*(getattr(config, "pad_token_id", None) for config in configs), 0))

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval", **gen_kwargs):
        """As `Seq2SeqTrainer.evaluate`: `gen_kwargs` go to `generate`."""
        with self._calls_with(gen_kwargs) as forwarded:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **forwarded)

    def predict(self, test_dataset, ignore_keys=None, metric_key_prefix: str = "test", **gen_kwargs):
        """As `Seq2SeqTrainer.predict`: `gen_kwargs` go to `generate`."""
        with self._calls_with(gen_kwargs) as forwarded:
            return super().predict(test_dataset, ignore_keys, metric_key_prefix, **forwarded)

    def evaluation_loop(self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"):
        """As `Trainer.evaluation_loop`, with the counts among the metrics."""
        if self._generates and self.compute_metrics is None:
            prediction_loss_only = None  # there is something to measure without references
        dtype = None
        if not self.is_in_train:  # as the trainer casts the model
            dtype = torch.float16 if self.args.fp16_full_eval else torch.bfloat16 if self.args.bf16_full_eval else None
        with self._with_draft(dtype), record() as counted:
            output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        counted.rows.clear()
        from accelerate.utils import gather_object

        output.metrics.update(metrics(metric_key_prefix, gather_object([counted])))
        return output

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None, **gen_kwargs):
        """Loss, new tokens and labels of one batch, as in `Seq2SeqTrainer`."""
        step = super().prediction_step
        if prediction_loss_only or not self._generates:
            return step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
        gen_kwargs = gen_kwargs or self._generate_kwargs()
        if isinstance(self, Seq2SeqTrainer) and self.model.config.is_encoder_decoder:
            with _unchanged(self.model.generation_config):
                return step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys, **gen_kwargs)
        inputs = self._prepare_inputs(inputs)
        labels = inputs.get("labels")
        given = self.generation_inputs(inputs)
        loss = None if labels is None else step(model, dict(inputs), True, ignore_keys=ignore_keys)[0]
        fsdp: Any = getattr(trainer_seq2seq, "FullyShardedDataParallel", ())  # the first version, which gathers by hand
        with fsdp.summon_full_params(self.model) if isinstance(self.model, fsdp) else nullcontext():
            tokens = self.model.generate(**given, **gen_kwargs)
        if self.model.config.is_encoder_decoder:
            return loss, tokens, labels
        width = given["input_ids"].shape[1] if "input_ids" in given else 0
        return loss, tokens[:, width:], None if labels is None else completions_of(labels)

    @property
    def _generates(self) -> bool:
        return getattr(self.args, "predict_with_generate", True) and not self.args.prediction_loss_only

    @contextmanager
    def _calls_with(self, gen_kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Keywords of `generate` for a while; those that the next class in line takes."""
        outer = self.generation_kwargs  # for several data sets, Trainer calls `evaluate` for each, without the keywords
        self.generation_kwargs = outer | gen_kwargs
        try:
            yield self.generation_kwargs if isinstance(self, Seq2SeqTrainer) else {}
        finally:
            self.generation_kwargs = outer

    def _generate_kwargs(self) -> dict[str, Any]:
        # A trainer of one's own may take keywords in `evaluate` that are not for `generate`: it says here which are.
        given = getattr(self, "_gen_kwargs", self.generation_kwargs)
        kwargs = {n: v for n, v in given.items() if v is not None or n not in ("max_length", "num_beams")}
        length, beams = (getattr(self.args, f"generation_{name}", None) for name in ("max_length", "num_beams"))
        if length is not None and not kwargs.keys() & {"max_length", "max_new_tokens"}:
            kwargs["max_length"] = length
        if beams is not None:
            kwargs.setdefault("num_beams", beams)
        config = getattr(self.args, "generation_config", None)
        if config is not None and not isinstance(self, Seq2SeqTrainer):  # which makes it the model's own
            kwargs.setdefault("generation_config", Seq2SeqTrainer.load_generation_config(config))
        return kwargs

    @contextmanager
    def _with_draft(self, dtype: torch.dtype | None = None) -> Iterator[PreTrainedModel]:
        """Give the model its draft for a while; one attached before serves where none is given.

        Args:
            dtype: what a draft model is turned into, which is moved to the trainer's device unless it is spread over several.

        Yields:
            The target, without an adapter's wrapper.

        Raises:
            ValueError, TypeError: as `attach`.
        """
        draft_model, config = self.draft_model, self.speculative_config
        if isinstance(draft_model, torch.nn.Module):
            draft_model = self.accelerator.unwrap_model(draft_model)
        target = checks.unwrap(self.accelerator.unwrap_model(self.model), "model")
        found, before = own_generate(target), {name: vars(target)[name] for name in REPLACED if name in vars(target)}
        if draft_model is not None or config is not None:
            attach(target, draft_model, config=config)
        elif found is None:  # a call may name a source of drafts
            target.generate = Attached(target, None, SpeculativeConfig())
        attached = own_generate(target)
        models = attached.models if isinstance(attached, Attached) else []
        for draft in models[1:]:
            if getattr(draft, "hf_device_map", None) is None:
                casts = dtype is not None and not getattr(draft, "is_quantized", False)
                draft.to(device=self.accelerator.device, **({"dtype": dtype} if casts else {}))
        try:
            yield target
        finally:
            if attached is not found and own_generate(target) is attached:
                for name in REPLACED:
                    vars(target).pop(name, None)
                vars(target).update(before)
                attached.drop_kernel()
                for one in models:  # training needs the memory
                    pool.release(one)


class SpeculativeSeq2SeqTrainer(SpeculativeTrainerMixin, Seq2SeqTrainer):
    """`Seq2SeqTrainer` whose `predict_with_generate` speculates; see `SpeculativeTrainerMixin`.

    trainer = SpeculativeSeq2SeqTrainer(model, args, eval_dataset=..., draft_model=draft)
    """


@contextmanager
def _unchanged(config) -> Iterator[None]:
    """`Seq2SeqTrainer` writes defaults into the model's generation_config after each batch."""
    before = dict(vars(config))
    try:
        yield
    finally:
        vars(config).clear()
        vars(config).update(before)


#: of `Statistics`, the counts that are metrics
COUNTS = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "num_target_forwards")


def metrics(prefix: str, of_processes: list[Statistics]) -> dict[str, float]:
    """Counts summed over processes and rates of the sums, `prefix` before each name; empty if no call had a draft.

    Rates of what did not happen are left out. The time is that of the process that took longest.
    """
    total = Statistics()
    for statistics in of_processes:
        total += statistics
    if not total.num_calls:
        return {}
    seconds = max(sum(statistics.seconds.values()) for statistics in of_processes)
    values = {name: getattr(total, name) for name in COUNTS} | {"tokens_per_second": total.num_new_tokens / seconds}
    if total.num_draft_tokens:
        values["draft_acceptance_rate"] = total.draft_acceptance_rate
        values["mean_acceptance_length"] = total.mean_acceptance_length
    return {f"{prefix}_{name}": value for name, value in values.items()}


IGNORED = -100


def prompts_of(inputs: dict[str, Tensor], pad_token_id: int) -> dict[str, Tensor]:
    """What comes before each row's first label, left-padded; rows without labels are prompts as a whole.

    Args:
        inputs: `input_ids (batch, width)`, padded on either side; `attention_mask` and `labels` as wide, if there are any.
            Other tensors as wide, such as `token_type_ids`, are cut the same way; what has another shape is kept.

    Raises:
        ValueError: `labels` are not as wide as the ids, or a row has no prompt.
    """
    ids, labels = inputs["input_ids"], inputs.get("labels")
    mask = inputs.get("attention_mask")
    is_prompt = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    if labels is not None:
        if labels.shape != ids.shape:
            shapes = f"`labels` have shape {tuple(labels.shape)} and `input_ids` {tuple(ids.shape)}"
            way_out = "give a label for each token of prompt and completion, or override `generation_inputs`"
            raise ValueError(f"{shapes}, for a decoder-only model: {way_out}.")
        is_prompt = is_prompt & (labels != IGNORED).cumsum(1).eq(0)
    if without := (~is_prompt.any(1)).nonzero().flatten().tolist():
        raise ValueError(f"rows {without} have no prompt: set its labels to {IGNORED}, or override `generation_inputs`.")

    def left_padded(values: Tensor, fill: int = 0) -> Tensor:
        rows = [row[kept] for row, kept in zip(values, is_prompt, strict=True)]
        return pad_sequence(rows, batch_first=True, padding_value=fill, padding_side="left")

    left_out = ("labels", "position_ids")  # `generate` makes positions from the mask
    prompts = {name: value for name, value in inputs.items() if name not in left_out}
    for name, value in prompts.items():
        if isinstance(value, Tensor) and value.shape == ids.shape:
            prompts[name] = left_padded(value, pad_token_id if name == "input_ids" else 0)
    return prompts | {"attention_mask": left_padded(is_prompt.to(torch.long))}


def completions_of(labels: Tensor) -> Tensor:
    """Each row's labels from its first one on, in column 0 and after: `(batch, longest)`, filled up with -100."""
    places = [(row != IGNORED).nonzero().flatten().tolist() or [0] for row in labels]
    rows = [row[found[0] : found[-1] + 1] for row, found in zip(labels, places, strict=True)]
    return pad_sequence(rows, batch_first=True, padding_value=IGNORED)
