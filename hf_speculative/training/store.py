"""What the target makes of each text, recorded once and read in every epoch, for those who have the room.

Kept are the states that a head reads, and what the target's output layer reads. That layer makes the logits from it again, at
a small part of their size. Where a target does something with its logits after that layer, they are kept themselves.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..measuring.fingerprint import fingerprint
from ..reports import files
from .examples import Collator, Example
from .teacher import Teacher, TeacherOutputs

FILE, FORMAT = "store.json", 1
#: texts in a file, which is written whole or not at all
TEXTS = 64
KEPT = "what was recorded before is kept, and the same call goes on once there is room"


class StoredTeacher(Teacher):
    """Reads from a folder what `teacher` would compute.

    Args:
        folder: what another run has recorded there of the same target and texts is used.
        examples: all texts that it will be asked about.

    Attributes:
        bytes_of_token: in the store.
    """

    def __init__(self, teacher: Teacher, folder: Path, examples: Sequence[Example]):
        super().__init__(teacher.target)
        self.teacher, self.layers, self.folder, self.examples = teacher, teacher.layers, folder, examples
        self.index = {example.prompt_ids + example.new_ids: i for i, example in enumerate(examples)}
        self.output = teacher.target.get_output_embeddings()
        found = self._computed(Collator()([examples[0].cut(8)]))
        with torch.no_grad():
            makes_logits = "read" in found and torch.equal(self.output(found["read"]), found["logits"])
        found.pop("logits" if makes_logits else "read", None)
        self.widths = {name: tensor.shape[-1] for name, tensor in found.items()}
        self.bytes_of_token = sum(tensor.shape[-1] * tensor.element_size() for tensor in found.values())

    @property
    def num_bytes(self) -> int:
        """Of the whole store, about."""
        return self.bytes_of_token * sum(map(len, self.index))

    def begin(self) -> list[int]:
        """The numbers of the files that are not there yet.

        Raises:
            ValueError: the folder holds something else, or the disk has no room for them.
        """
        files.check_folder("`store`", self.folder)
        texts = hashlib.sha256(json.dumps(list(self.index)).encode()).hexdigest()[:16]
        target = f"{fingerprint(self.target)} in {self.target.dtype}"
        ours = {"format": FORMAT, "target": target, "layers": self.layers, "kept": self.widths, "texts": texts}
        path = self.folder / FILE
        theirs = json.loads(path.read_text()) if path.exists() else None
        if theirs is None and self.folder.exists() and any(self.folder.iterdir()):
            raise ValueError(f"`store={str(self.folder)!r}` holds other files: name a new folder.")
        for name, value in ours.items():
            if theirs is not None and theirs.get(name) != value:
                raise ValueError(
                    f"`store={str(self.folder)!r}` was recorded of something else: its {name} is {theirs.get(name)!r} and not "
                    f"{value!r}. Name another folder, or delete this one."
                )
        num_files = -(-len(self.examples) // TEXTS)
        missing = [number for number in range(num_files) if not self._path(number).exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        needed, free = self.num_bytes * len(missing) // num_files, shutil.disk_usage(self.folder).free
        if needed > free:
            raise ValueError(
                f"`store={str(self.folder)!r}` needs {needed / 1e9:,.1f} GB more, and {free / 1e9:,.1f} GB are free there: "
                "name a folder on a larger disk, or train without a store."
            )
        if theirs is None:
            files.write(path, json.dumps(ours))
        return missing

    def record(self, missing: Sequence[int], collator: Collator, batch_size: int) -> None:
        """Adds files, from passes of so many texts."""
        for number in missing:
            found: dict[str, Tensor] = {}
            texts = self.examples[number * TEXTS : (number + 1) * TEXTS]
            for begin in range(0, len(texts), batch_size):
                batch = collator(texts[begin : begin + batch_size])
                computed = self._computed(batch)
                for row, (i, length) in enumerate(self._numbers(batch["input_ids"], batch["attention_mask"])):
                    found |= {f"{i}.{name}": computed[name][row, :length].cpu().clone() for name in self.widths}
            beside = self._path(number).with_suffix(".new")
            with files.named(self.folder, KEPT):
                save_file(found, beside)
                os.replace(beside, self._path(number))

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> TeacherOutputs:
        dtype, device = self.target.dtype, input_ids.device
        found = {
            name: torch.zeros(*input_ids.shape, width, dtype=dtype, device=device)
            for name, width in self.widths.items()
        }
        for row, (i, length) in enumerate(self._numbers(input_ids, attention_mask)):
            with safe_open(self._path(i // TEXTS), "pt") as file:
                for name, tensor in found.items():
                    tensor[row, :length] = file.get_tensor(f"{i}.{name}").to(device)
        logits = found["logits"] if "logits" in found else self.output(found["read"])
        return TeacherOutputs(input_ids, attention_mask, self.counted(labels), logits, found.get("states"))

    def _computed(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the target makes of a batch, each `(rows, width, size)`; `read` is what its output layer reads."""
        read: list[Tensor] = []
        hook = self.output and self.output.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
        try:
            lesson = self.teacher(**{name: tensor.to(self.target.device) for name, tensor in batch.items()})
        finally:
            if hook is not None:
                hook.remove()
        states = {} if lesson.states is None else {"states": lesson.states}
        return states | {"logits": lesson.logits} | ({"read": read[0]} if len(read) == 1 else {})

    def _numbers(self, input_ids: Tensor, attention_mask: Tensor) -> Iterator[tuple[int, int]]:
        """The number of each text among the examples, and its length."""
        for ids, length in zip(input_ids.tolist(), attention_mask.sum(1).tolist(), strict=True):
            yield self.index[tuple(ids[:length])], length

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.safetensors"
