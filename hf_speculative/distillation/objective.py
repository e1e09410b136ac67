"""The loss of a student: between its guesses and the target's distributions, summed over what it guesses."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .chunked_loss import summed
from .losses import Loss
from .sampling_params import SamplingParams
from .student import Prediction, Student
from .teacher import TeacherOutputs


@dataclass(frozen=True)
class Objective:
    """What a student is trained for.

    Attributes:
        loss: between two distributions.
        use: how the target will be sampled from.
    """

    student: Student
    loss: Loss
    use: SamplingParams

    def __call__(self, outputs: Any, lesson: TeacherOutputs) -> Tensor:
        """The weighted sum of the losses of all guesses that count, `()`; `outputs` are those of the student's module."""
        predictions = self.student.predictions(outputs, lesson)
        return sum((self._summed(prediction, lesson) for prediction in predictions), lesson.logits.new_zeros(()))

    def _summed(self, prediction: Prediction, lesson: TeacherOutputs) -> Tensor:
        """The loss of one prediction, summed over the guesses that count."""
        last = lesson.ids.shape[1] - 1  # which never counts: nothing follows
        positions = prediction.positions.clamp(max=last)

        def of_piece(drafted: Tensor, rows: Tensor, guesses: Tensor) -> Tensor:
            logits = lesson.logits[rows, positions[rows, guesses]]
            return (prediction.weights[rows, guesses] * self._losses(logits, drafted)).sum()

        return summed(of_piece, prediction.logits, lesson.counted.gather(1, positions) & (prediction.weights != 0))

    def _losses(self, logits: Tensor, drafted: Tensor) -> Tensor:
        """The loss of each guess, `(n,)`; 0 where all that the target allows is what the draft cannot say.

        Args:
            logits: `(n, vocab)` of the target.
            drafted: `(n, drafted)` of the draft.
        """
        p, vocabulary = self.use.of_target(logits), self.student.vocabulary
        if vocabulary is not None:
            p = p[:, vocabulary.to(p.device)]
        elif p.shape[1] != drafted.shape[1]:  # one of the two is padded further
            width = min(p.shape[1], drafted.shape[1])
            p, drafted = p[:, :width], drafted[:, :width]
        if p.shape[1] == logits.shape[1]:
            return self.loss(p, self.use.of_draft(drafted))
        mass = p.logsumexp(-1, keepdim=True)
        in_vocabulary = ~mass[:, 0].isneginf()
        p, drafted = (p - mass)[in_vocabulary], drafted[in_vocabulary]
        found = self.loss(p, self.use.of_draft(drafted))
        return found.new_zeros(len(logits)).index_put((in_vocabulary,), found)
