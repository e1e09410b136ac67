"""Store the target's outputs for each text once, and read them in every epoch; it takes room on the disk.

Kept are the states that a head reads, and what the target's output layer reads. That layer makes the logits from it again, at
a small part of their size. Where a target does something with its logits after that layer, they are kept themselves.
"""

import hashlib
import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..measuring.fingerprint import fingerprint
from ..reports import files
from .teacher import Teacher, TeacherOutputs

KEPT = "what was recorded before is kept, and the same call goes on once there is room"


class StoredTeacher(Teacher):
    """Record the outputs of `teacher` for each text once, and read them in later epochs.

    Args:
        folder: of any number of targets and heads, each of which has a folder of its own in there, with a file for each text.
    """

    def __init__(self, teacher: Teacher, folder: Path):
        super().__init__(teacher.target)
        self.teacher, self.output = teacher, teacher.target.get_output_embeddings()
        first = torch.ones(1, 2, dtype=torch.long, device=self.target.device)
        found = self._computed(first, first, first)
        with torch.no_grad():
            makes_logits = "read" in found and torch.equal(self.output(found["read"]), found["logits"])
        self.names = found.keys() - {"logits" if makes_logits else "read"}
        self.folder = folder / _digest(fingerprint(self.target), str(self.target.dtype), *teacher.layers)
        files.make_folder(f"`store={str(folder)!r}`", self.folder)

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> TeacherOutputs:
        texts = [ids[:n] for ids, n in zip(input_ids.tolist(), attention_mask.sum(1).tolist(), strict=True)]
        paths = [self.folder / f"{_digest(*ids)}.safetensors" for ids in texts]
        if not all(path.exists() for path in paths):
            found = self._computed(input_ids, attention_mask, labels)
            for row, (ids, path) in enumerate(zip(texts, paths, strict=True)):
                self._write(path, {name: found[name][row, : len(ids)].cpu().clone() for name in self.names})
        rows = [load_file(path, str(input_ids.device)) for path in paths]
        read = {name: pad_sequence([row[name] for row in rows], batch_first=True) for name in self.names}
        logits = read["logits"] if "logits" in read else self.output(read["read"])
        return TeacherOutputs(input_ids, attention_mask, self.counted(labels), logits, read.get("states"))

    def _computed(self, *batch: Tensor) -> dict[str, Tensor]:
        """What the target makes of a batch, each `(rows, width, size)`; `read` is what its output layer reads."""
        read: list[Tensor] = []
        hook = self.output and self.output.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
        try:
            lesson = self.teacher(*batch)
        finally:
            if hook is not None:
                hook.remove()
        states = {} if lesson.states is None else {"states": lesson.states}
        return states | {"logits": lesson.logits} | ({"read": read[0]} if len(read) == 1 else {})

    def _write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        beside = path.with_suffix(f".{os.getpid()}")  # another process may record the same text
        with files.named(self.folder, KEPT):
            save_file(tensors, beside)
            os.replace(beside, path)


def _digest(*values: str | int) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]
