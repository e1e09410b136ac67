"""Speculation and its statistics for a trainer whose class you cannot change."""

from __future__ import annotations

import logging

from transformers import PreTrainedModel, Trainer, TrainerCallback

from ...call import checks
from ...call.configuration import SpeculativeConfig
from .measuring import NUM_PLAIN, Measured, measure

logger = logging.getLogger(__name__)


class SpeculativeEvalCallback(TrainerCallback):
    """A draft for the model of any Trainer that generates when it evaluates, and its statistics among the metrics.

    trainer.add_callback(SpeculativeEvalCallback(trainer, draft_model=draft))

    A callback is not told when an evaluation begins, and cannot add to what is logged at its end. Prefer
    `SpeculativeTrainerMixin` if you can change the class. In contrast to it,

    * every `generate` of the trainer's model speculates, from now on until `detach()`;
    * an evaluation's statistics are those of all calls since the last training step or evaluation;
    * they are logged in an entry of their own at the same step, and added to what `evaluate` and `predict` return:
      `metric_for_best_model` sees them, the `on_evaluate` of callbacks that come before this one does not;
    * it does not make a trainer generate: `Seq2SeqTrainer` does so with `predict_with_generate=True`, and in `evaluate` only
      with `compute_metrics`. `Seq2SeqTrainer` still writes defaults into the model's `generation_config`.

    Args:
        trainer: the trainer whose callback this becomes.
        draft_model, speculative_config, speedup_batches: as for `SpeculativeTrainerMixin`.

    Raises:
        ValueError, TypeError: as `attach`.
    """

    def __init__(
        self,
        trainer: Trainer,
        draft_model: PreTrainedModel | str | None = None,
        speculative_config: SpeculativeConfig | None = None,
        speedup_batches: int = 0,
    ):
        speedup_batches = NUM_PLAIN.checked("speedup_batches", speedup_batches)
        self.trainer, self.draft_model, self.speculative_config = trainer, draft_model, speculative_config
        self.speedup_batches = speedup_batches
        self._meter = self._attach()

    def detach(self) -> None:
        """Undo what the callback did to the model; it has no effect afterwards."""
        self._meter.detach()

    def on_train_begin(self, args, state, control, **kwargs):
        if self._model() is not self._meter.model:  # `model_init` makes a new one for each trial
            self.detach()
            self._meter = self._attach()

    def on_step_end(self, args, state, control, **kwargs):
        self._meter.take()  # what was generated while training is not the evaluation's

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        found = self._metrics(metrics)
        if found:
            metrics.update(found)
            self.trainer.log(found)

    def on_predict(self, args, state, control, metrics, **kwargs):
        metrics.update(self._metrics(metrics))

    def _model(self) -> PreTrainedModel:
        return checks.unwrap(self.trainer.accelerator.unwrap_model(self.trainer.model), "model")

    def _attach(self) -> Measured:
        device = self.trainer.accelerator.device
        return measure(self._model(), self.draft_model, self.speculative_config, self.speedup_batches, device)

    def _metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        timed = (name.removesuffix("_runtime") for name in metrics if name.endswith("_runtime"))
        prefix = next(name for name in timed if f"{name}_samples_per_second" in metrics)  # as Trainer logs both
        found = self._meter.take().summed_over_processes(self.trainer.accelerator).metrics(prefix)
        if not found:
            logger.warning(
                "%s: the trainer generated nothing with the draft, so that there are no statistics: set "
                "`predict_with_generate=True` and give `compute_metrics`.",
                prefix,
            )
        return found
