"""Which kind of student a draft becomes."""

from transformers import PreTrainedModel

from ..call.sources import source_of
from .dflash_student import DFlashStudent
from .draft_student import DraftStudent, check_fits
from .eagle3_student import Eagle3Student
from .student import HeadStudent, Student


def student_of(draft: PreTrainedModel, target: PreTrainedModel) -> Student:
    """A draft in training: the draft itself, no copy of it.

    Raises:
        ValueError: it cannot draft for the target, or is a head of a kind that is not trained here.
    """
    if source_of("draft_model", draft).reads_target:
        return head_student_of(draft, target)
    return DraftStudent(draft, target)


def head_student_of(
    head: PreTrainedModel, target: PreTrainedModel, ttt_steps: int = 3, ttt_decay: float = 0.8, anchors: int = 64
) -> HeadStudent:
    """A head in training.

    Args:
        ttt_steps, ttt_decay: of an EAGLE-3 head, see `Eagle3Student`.
        anchors: of a DFlash block, see `DFlashStudent`.
    """
    check_fits(head, target)
    if Eagle3Student.trains(head):
        return Eagle3Student(head, target, ttt_steps, ttt_decay)
    if DFlashStudent.trains(head):
        return DFlashStudent(head, target, anchors)
    raise ValueError(
        f"a head of type {type(head).__name__}: EAGLE-3 heads and DFlash blocks are trained here, without what other kinds "
        "add to them (P-EAGLE, DFlash 2, DSpark, MTP). Give one of these, or a small model."
    )
