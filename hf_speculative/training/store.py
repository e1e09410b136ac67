"""Store the target's outputs for each text once, and read them in every epoch; it takes room on the disk.

Kept are the states that a head reads, and the last one, at a small part of the size of logits. The output layer makes those
again from it. Where a target does something with its logits after that layer, they are kept themselves.
"""

from inspect import signature
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ..distillation.head_student import num_layers
from ..distillation.teacher import Teacher, TeacherOutputs
from ..measuring.plan import fingerprint
from ..models.described import digest
from ..reports import files

#: of the digests that are names
DIGITS = 32


class StoredTeacher(Teacher):
    """A teacher that records the target's outputs for each text once, and reads them in later epochs.

    Args:
        folder: of any number of targets and heads, each of which has a folder of its own in there, with a file for each text.
    """

    def __init__(self, target: PreTrainedModel, layers: tuple[int, ...], folder: Path):
        super().__init__(target)
        self.teacher, self.output = Teacher(target, (*layers, num_layers(target))), target.get_output_embeddings()
        first = torch.ones(1, 2, dtype=torch.long, device=target.device)
        found = self._computed(first, first, first)
        with torch.no_grad():
            makes_logits = self.output is not None and torch.equal(self.output(found["last"]), found["logits"])
        self.names = ("states", "last" if makes_logits else "logits")
        if makes_logits and "logits_to_keep" in signature(target.forward).parameters:
            self.teacher.keywords = {"logits_to_keep": 1}  # none of them is read
        self.folder = folder / digest([fingerprint(target), str(target.dtype), *layers])[:DIGITS]
        files.make_folder(f"`store={str(folder)!r}`", self.folder)

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> TeacherOutputs:
        rows = [load_file(path, str(input_ids.device)) for path in self.record(input_ids, attention_mask, labels)]
        read = {name: pad_sequence([row[name] for row in rows], batch_first=True) for name in self.names}
        logits = read["logits"] if "logits" in read else self.output(read["last"])
        return TeacherOutputs(input_ids, attention_mask, self.counted(labels), logits, read["states"])

    def record(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> list[Path]:
        """The files of these texts, which are written where they are missing."""
        texts = [ids[:n] for ids, n in zip(input_ids.tolist(), attention_mask.sum(1).tolist(), strict=True)]
        paths = [self.folder / f"{digest(ids)[:DIGITS]}.safetensors" for ids in texts]
        if not all(path.exists() for path in paths):
            found = self._computed(input_ids, attention_mask, labels)
            for row, (ids, path) in enumerate(zip(texts, paths, strict=True)):
                files.write(path, save({name: found[name][row, : len(ids)].cpu().clone() for name in self.names}))
        return paths

    def _computed(self, *batch: Tensor) -> dict[str, Tensor]:
        """What the target makes of a batch, each `(rows, width, size)`; `last` is what its output layer reads."""
        lesson = self.teacher(*batch)
        size = lesson.states.shape[-1] // len(self.teacher.layers)
        return {"states": lesson.states[..., :-size], "last": lesson.states[..., -size:], "logits": lesson.logits}
