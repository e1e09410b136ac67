"""Compile passes ahead of time to files, named by a hash of all that they depend on. Loading one takes a fraction of a second.

A folder beside the Hub's cache holds them: `HF_SPECULATIVE_PASSES` names another one. In place of a file that
could not be made there is a note with the reason; it is not tried again until the note is deleted.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging as hf_logging

from ..hf_compat import attention_name
from . import exported
from .attention import with_folded_attention
from .described import FOLDER, NOT_OF_LAYERS, OFF, described, digest, folder
from .linears import num_by_kernel
from .pieces import CannotCut, pieces_of
from .pool import own_tensors
from .shallow import install_capturing_hooks, runs_more
from .stepped import with_stepped_mixers
from .traced import EncoderDecoderPass, HeadPass, Pass, TracedPass, sizes_that_vary

#: rough costs, to estimate whether compiling pays: Python's time a layer, and the bytes that a core reads a second
SECONDS_A_LAYER, BYTES_A_SECOND = 3e-4, 2e10
#: the least share of Python in a pass's time for `optimize="auto"` to make a file
LEAST_SHARE = 0.1
#: free bytes on the disk that making a file needs
LEAST_FREE = 2**26
#: suffixes of notes beside files: why there is none, why a background process cannot make it, why it is one and no pieces
FAILED, FOREGROUND, WHOLE = ".txt", ".foreground.txt", ".whole.txt"
#: of a file, on tensors as the pass it was made of takes them
CompiledPass = exported.BoundPass | exported.PassOfPieces
#: processes that compile in the background, by the name of what they make; `None` if none could be started
_started: dict[str, subprocess.Popen | None] = {}
#: how they are started: what interrupts this process leaves them alone, and those of one session compete by their priority
APART: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
#: passes without files when the folder last changed: finding their names takes as long as a token
_missing: set[tuple[Path, int | None]] = set()
logger = logging.getLogger(__name__)


class CannotCompile(RuntimeError):
    """The model's passes cannot be compiled."""


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Why passes of `model` cannot be compiled; `None` if they may be."""
    modules = list(model.modules())
    if model.device.type != "cpu":
        return f"is on {model.device.type}, and files are for CPUs"
    if torch.is_autocast_enabled("cpu"):
        return "runs under autocast"
    if any(module.training for module in modules):
        return "is in training mode"
    if runs_more(modules):
        return "has hooks, or a `forward` of its own"
    if any(type(tensor) not in (Tensor, nn.Parameter) for tensor in own_tensors(modules)):
        return "has weights of a form of their own"
    if getattr(model, "hf_quantizer", None) is not None:
        return "is quantised"
    return None


def path_of(model: PreTrainedModel, recorded: tuple[int, ...] = ()) -> Path:
    """The path of the file of a whole pass of `model`. Its name is made of all that the pass depends on.

    These are the model's description, and the hidden states that the pass returns.
    """
    states = "-states" + "_".join(map(str, recorded)) if recorded else ""
    return folder() / f"{described(model, model.config)}{states}.pt2"


@dataclass(frozen=True)
class Files:
    """A pass and its files.

    Attributes:
        whole: the pass.
        parts: its pieces, or the pass itself, if it is one file.
        paths: of their files; equal pieces share one.
    """

    whole: TracedPass
    parts: list[nn.Module]
    paths: list[Path]

    @property
    def modules(self) -> dict[Path, nn.Module]:
        """The modules to compile, one for each file."""
        return dict(zip(self.paths, self.parts, strict=True))

    @property
    def are_there(self) -> bool:
        return all(path.exists() for path in self.paths)

    def load(self) -> CompiledPass:
        """Load the pass on the model's own weights."""
        with ExitStack() as stack:
            packages = {path: stack.enter_context(closing(exported.CompiledPackage(path))) for path in {*self.paths}}
            bound = [exported.load(packages[path], part) for path, part in zip(self.paths, self.parts, strict=True)]
        if len(bound) == 1:
            bound[0].layouts = self.whole.layouts
            return bound[0]
        return exported.PassOfPieces(bound, self.whole.num_places, self.whole.recorded, self.whole.layouts)


def files_of(model: PreTrainedModel, recorded: tuple[int, ...] = ()) -> Files:
    """The files of the passes of `model`: one for each kind of layer and two for the rest, or one where that cannot be.

    Args:
        recorded: indices of transformers' `hidden_states` that they return beside logits; here and below.

    Raises:
        CannotCompile: the model does not read a prompt of ids alone, by which it is found what layers cache.
    """
    whole, path = _pass(model, recorded), path_of(model, recorded)
    if not isinstance(whole, Pass) or path.with_suffix(WHOLE).exists():
        return Files(whole, [whole], [path])
    try:
        before, *layers, after = pieces_of(whole)
    except CannotCut:
        return Files(whole, [whole], [path])
    names = [described(before, model.config)]
    for layer in layers:
        called = digest([layer.call, sizes_that_vary(*layer.samples)])
        names.append(f"{described(layer, model.config, *NOT_OF_LAYERS)}-{called[:8]}")
    names.append(described(after, model.config))
    pieces = [before, *layers, after]
    return Files(whole, pieces, [folder() / f"{name}.pt2" for name in names])


def find(model: PreTrainedModel, recorded: tuple[int, ...] = ()) -> CompiledPass | None:
    """The compiled pass of `model`, on its own weights, if its files exist."""
    looked_at = path_of(model, recorded), folder().stat().st_mtime_ns if folder().exists() else None
    if looked_at in _missing:
        return None
    files = None
    with suppress(CannotCompile):
        files = files_of(model, recorded)
    if files is None or not files.are_there:
        _missing.add(looked_at)
        return None
    try:
        return files.load()
    except exported.Differs:
        return None
    except Exception as error:  # a damaged file: torch, zip and JSON raise many kinds
        what = f"Compiled passes of {type(model).__name__} in {folder()}"
        logger.warning(f"{what} cannot be read, and are removed ({_short(error)}).")
        for path in files.modules:
            with suppress(OSError):
                path.unlink()
        return None


def make(model: PreTrainedModel, recorded: tuple[int, ...] = ()) -> list[Path]:
    """Compile the missing files of `model`, with a progress bar; wait for another process that compiles them.

    Raises:
        CannotCompile: torch cannot compile it, or the compiled pass differs from the model.
    """
    if reason := unsupported_reason(model):
        raise CannotCompile(f"{type(model).__name__} {reason}")
    try:
        folder().mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(folder()).free) < LEAST_FREE:
            raise CannotCompile(f"{free / 2**20:.0f} MB are free in {folder()}, and it takes {LEAST_FREE / 2**20:.0f}")
        return _made(model, recorded)
    except OSError as error:  # such as a read-only folder
        raise CannotCompile(f"nothing can be written to {folder()} ({_short(error)})") from error


def _made(model: PreTrainedModel, recorded: tuple[int, ...]) -> list[Path]:
    path = path_of(model, recorded)
    _missing.clear()  # file times may be a few milliseconds behind
    note = path.with_suffix(FAILED)
    with FileLock(path.with_suffix(".lock")):
        if note.exists():
            raise CannotCompile(note.read_text())
        while True:
            try:
                files = files_of(model, recorded)
            except CannotCompile as error:
                note.write_text(str(error))
                raise
            try:
                _make(files)
                return list(files.modules)
            except Exception as error:  # torch's compiler raises many kinds; passes then run eagerly
                if len(files.parts) == 1:
                    note.write_text(_short(error))
                    raise CannotCompile(_short(error)) from error
                path.with_suffix(WHOLE).write_text(_short(error))  # the next files are those of a whole pass


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _make(files: Files) -> None:
    """Compile missing files, and keep them if the pass equals the model's."""
    missing = {path: module for path, module in files.modules.items() if not path.exists()}
    with tempfile.TemporaryDirectory(dir=folder()) as place:
        begun = {path: Path(place) / path.name for path in missing}
        bar = hf_logging.tqdm(missing.items(), f"compiling {type(files.whole.model).__name__}", disable=not missing)
        for path, module in bar:
            exported.compile_to(begun[path], module)
        if missing:
            not_moved = replace(files, paths=[begun.get(path, path) for path in files.paths])
            exported.check(not_moved.load(), files.whole, files.parts)
        for path, made in begun.items():
            made.replace(path)


def pays(model: PreTrainedModel) -> bool:
    """Whether Python's share of a pass is large enough for a compiled file to be worth a minute of one core."""
    num_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    python = SECONDS_A_LAYER * model.config.get_text_config(decoder=True).num_hidden_layers
    return python / (python + num_bytes / BYTES_A_SECOND) >= LEAST_SHARE


def is_head(model: PreTrainedModel) -> bool:
    """Whether it is a draft head, which continues a target's states and is no language model on its own."""
    return model.main_input_name == "inputs_embeds" and not model.can_generate()


def start(model: PreTrainedModel, recorded: tuple[int, ...] = ()) -> None:
    """Start compiling in a background process, which runs while cores are idle: once, and not where an earlier try failed.

    That process builds a model of random weights from the config: the file holds none.
    """
    if is_head(model):
        return  # transformers could not build it from its config
    path = path_of(model, recorded)
    has_failed = any(path.with_suffix(suffix).exists() for suffix in (FAILED, FOREGROUND))
    if path.name in _started or has_failed or _has_no_power_to_spare():
        return
    _started[path.name] = None
    asked = {
        "path": str(path),
        "has_kernel": num_by_kernel(model) > 0,
        "recorded": recorded,
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": attention_name(model.config),
        # `.to(dtype)` casts buffers as well, which a model that is made or loaded in `dtype` has in float32.
        "is_cast": all(buffer.dtype == model.dtype for buffer in model.buffers() if buffer.is_floating_point()),
    }
    place = ""
    try:
        place = tempfile.mkdtemp(prefix="hf_speculative-")  # the process removes it
        model.config.save_pretrained(place)
        (Path(place) / "asked.json").write_text(json.dumps(asked))
        command = [sys.executable, "-m", "hf_speculative.models.artifact_process", place]
        silent = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent, **APART)
        _started[path.name] = process
        _give_way(process.pid)
    except (OSError, ValueError) as error:  # no room for files, or a config that cannot be saved
        logger.warning(f"Passes of {type(model).__name__} cannot be compiled in the background ({_short(error)}).")
        shutil.rmtree(place, ignore_errors=True)
        return
    what = f"Passes of {type(model).__name__} are compiled while cores are idle, for later calls and processes"
    logger.warning(f"{what}; `hf-speculative compile` does so at once, `optimize=False` or {FOLDER}={OFF} never.")


def _give_way(process: int) -> None:
    """Let a process run only where nothing else does.

    A low priority would not do: whatever its share, Linux lets it end its turn of milliseconds, and threads that decode wait
    for each other many times in one.
    """
    if hasattr(os, "setpriority"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process, 19)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # some sandboxes refuse
            os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))


def _has_no_power_to_spare() -> bool:
    """Whether the machine has one core, or reports that it runs on battery."""
    supplies = Path("/sys/class/power_supply").glob("BAT*/status")
    try:
        return (os.cpu_count() or 1) < 2 or any(one.read_text().strip() == "Discharging" for one in supplies)
    except OSError:
        return False


def _pass(model: PreTrainedModel, recorded: tuple[int, ...]) -> TracedPass:
    if recorded:
        install_capturing_hooks(model)  # before a copy shares its layers
    twin = with_stepped_mixers(with_folded_attention(model))
    try:
        if is_head(model):
            return HeadPass(twin)
        return (EncoderDecoderPass if model.config.is_encoder_decoder else Pass)(twin, recorded)
    except Exception as error:  # models raise many kinds
        raise CannotCompile(f"it does not read a prompt of ids alone ({_short(error)})") from error
