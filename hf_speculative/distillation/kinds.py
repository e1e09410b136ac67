"""Which kind of student a draft becomes."""

from transformers import PreTrainedModel

from ..call.sources import source_of
from .dflash_student import DFlashStudent
from .draft_student import DraftStudent, check_fits
from .eagle3_student import Eagle3Student
from .student import Student


def student_of(
    draft: PreTrainedModel, target: PreTrainedModel, ttt_steps: int = 3, ttt_decay: float = 0.8, anchors: int = 64
) -> Student:
    """A draft in training: the draft itself, no copy of it.

    Args:
        ttt_steps, ttt_decay: of an EAGLE-3 head, see `Eagle3Student`.
        anchors: of a DFlash block, see `DFlashStudent`.

    Raises:
        ValueError: it cannot draft for the target, or is a head of a kind that is not trained here.
    """
    if not source_of("draft_model", draft).reads_target:
        return DraftStudent(draft, target)
    check_fits(draft, target)
    if Eagle3Student.trains(draft):
        return Eagle3Student(draft, target, ttt_steps, ttt_decay)
    if DFlashStudent.trains(draft):
        return DFlashStudent(draft, target, anchors)
    raise ValueError(
        f"a head of type {type(draft).__name__}: EAGLE-3 heads and DFlash blocks are trained here, without what other kinds "
        "add to them (P-EAGLE, DFlash 2, DSpark, MTP). Give one of these, or a small model."
    )
