"""The background process of `artifacts.start`: `python -m hf_speculative.models.artifact_process FOLDER`."""

import json
import shutil
import sys
from pathlib import Path

import torch
from filelock import FileLock
from transformers import AutoConfig

from . import artifacts, linears
from .loading import auto_class_for


def main(place: Path) -> None:
    """Makes the file of the model whose config lies in `place`, if that model is described as the caller's was."""
    torch.set_num_threads(1)
    try:
        asked = json.loads((place / "asked.json").read_text())
        config = AutoConfig.from_pretrained(place)
        dtype = getattr(torch, asked["dtype"])
        model = auto_class_for(place).from_config(config, dtype=dtype, attn_implementation=asked["attention"]).eval()
        if asked["is_cast"]:
            model.to(dtype)
        if asked["has_kernel"]:
            linears.use_kernel(model)
        path, recorded = Path(asked["path"]), tuple(asked["recorded"])
        if artifacts.path_of(model, recorded) != path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(artifacts.FOREGROUND).write_text("a model built from the config alone is another one")
            return
        with FileLock(path.parent / "making.lock"):  # one process at a time
            artifacts.make(model, recorded=recorded)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
