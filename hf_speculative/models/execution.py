"""Run passes on the ragged path: eagerly, compiled ahead of time, or captured."""

import functools
import os
import warnings
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ..hf_compat import placement_hook
from . import artifacts, linears, multimodal, pool
from .artifacts import CompiledPass
from .attention import takes_masks
from .cached_model import device_of
from .choice import choose, ragged_unsupported_reason
from .described import FOLDER, OFF
from .inputs import Inputs
from .model_state import kept_with
from .ragged import RaggedModel
from .recording import AheadRecordingModel, RecordingModel, StaticRecordingModel
from .replays import Capture, CudaGraph, failed_on
from .shallow import runs_more
from .sharding import group_of, is_sharded
from .static import AheadModel, StaticModel
from .verified_types import is_tested_multimodal

#: seconds of decoding after which "auto" starts to compile; short scripts end before
ENOUGH_SECONDS = 10.0
NOT_COMPILED = "passes of {} are not compiled, and run eagerly: {}."


@dataclass(frozen=True)
class Execution:
    """How the passes of a call run.

    Attributes:
        has_kernel: linear layers of an attached model multiply by our kernel.
        compile: from compiled files, made first; "auto": from those that are there, made in the background.
        captures: captured as CUDA graphs.
    """

    has_kernel: bool = False
    compile: bool | str = False
    captures: bool = False


EAGER = Execution()


def ragged_model(model: PreTrainedModel, execution: Execution, clamp_ids: bool = False, is_static: bool = False) -> RaggedModel:
    """A ragged model whose passes run as asked, or eagerly where they cannot (`uncompilable_reason`, `uncapturable_reason`).

    Args:
        is_static: eager passes have static shapes as well.
    """
    if (capture := capture_of(model, execution)) is not None:
        return StaticModel(model, clamp_ids, capture)
    if (run := compiled_pass(model, execution)) is not None:
        return AheadModel(model, clamp_ids, run)
    return (StaticModel if is_static else RaggedModel)(model, clamp_ids)


def multimodal_model(
    model: PreTrainedModel, inputs: Inputs, clamp_ids: bool = False, execution: Execution = EAGER
) -> multimodal.MultimodalModel:
    """A ragged model for a prompt of more than ids."""
    kind = multimodal.multimodal_class_for(inputs)
    if inputs.has_encoder and inputs.is_decoder:
        return kind(model, inputs, clamp_ids)  # what it attends to is another model's
    if (capture := capture_of(model, execution)) is not None:
        static = multimodal.StaticEncoderDecoderModel if inputs.has_encoder else multimodal.StaticMultimodalModel
        return static(model, inputs, clamp_ids, capture=capture)
    if (run := compiled_pass(model, execution)) is not None:
        ahead = multimodal.AheadEncoderDecoderModel if inputs.has_encoder else multimodal.AheadMultimodalModel
        return ahead(model, inputs, clamp_ids, one_pass=run)
    return kind(model, inputs, clamp_ids)


def recording_model(model: PreTrainedModel, layers: tuple[int, ...], execution: Execution, is_static: bool) -> RecordingModel:
    """A target that records the states of `layers`; `execution` and `is_static` are as in `ragged_model`."""
    if (capture := capture_of(model, execution)) is not None:
        return StaticRecordingModel(model, layers, capture=capture)
    if (run := compiled_pass(model, execution, layers)) is not None:
        return AheadRecordingModel(model, layers, clamp_ids=False, one_pass=run)
    return (StaticRecordingModel if is_static else RecordingModel)(model, layers)


def capture_of(model: PreTrainedModel, execution: Execution) -> Capture | None:
    """How to capture passes of `model`; `None` where that is not asked for, or cannot be."""
    return functools.partial(CudaGraph, device_of(model)) if execution.captures and uncapturable_reason(model) is None else None


def has_fast_passes(model: PreTrainedModel, execution: Execution) -> bool:
    """Whether passes of `model`, as it is now, run from a file or captured."""
    if not (_takes_encoded(model) if model.config.is_encoder_decoder else choose(model).name == "ragged"):
        return False
    return uncapturable_reason(model) is None if execution.captures else compiled_pass(model, execution) is not None


def _takes_encoded(model: PreTrainedModel) -> bool:
    """Whether a decoder's calls take the ragged path, whatever its encoder reads."""
    return is_tested_multimodal(model) and ragged_unsupported_reason(model) is None


def uncapturable_reason(model: PreTrainedModel) -> str | None:
    """Why passes cannot be captured, as far as is known before the first capture; `None` if they can."""
    device = device_of(model)
    if device.type != "cuda":
        return "is not on a GPU"
    if device in failed_on:
        return "is on a GPU where a capture failed, as a warning told"
    if pool.kept(model).cannot_capture:
        return "has passes of which a capture failed, as a warning told"
    if torch.is_autocast_enabled(device.type):
        return "runs under autocast, whose copies of weights go when it ends"
    if runs_more(model.modules()):
        return "has hooks or functions of its user, of which a replay runs none"
    return eager_reason(model)


def described_passes(model: PreTrainedModel) -> str:
    """How passes of `model`, which takes the ragged path, run once it is attached, and why they do not run faster."""
    on_gpu = device_of(model).type == "cuda"
    if os.environ.get(FOLDER) == OFF:
        return f"eager, by {FOLDER}={OFF}"
    if (reason := uncapturable_reason(model) if on_gpu else uncompilable_reason(model)) is not None:
        return f"eager, since it {reason}"
    if on_gpu:
        return "captured as CUDA graphs"
    in_background = "in the background or " if artifacts.pays(model) else ""
    later = f"eager until they are compiled, {in_background}by `hf-speculative compile`"
    try:
        return "compiled" if artifacts.files_of(model).are_there else later
    except artifacts.CannotCompile as error:
        return f"eager: {error}"


def note_decoded(models: Iterable[PreTrainedModel | None], seconds: float) -> None:
    """Add decoding time of `models`; after enough of it their passes are compiled."""
    for kept in (kept_with(model) for model in models if model is not None):
        kept[note_decoded] = kept.get(note_decoded, 0.0) + seconds


def how_passes_run(compile: bool | str | None, *models: PreTrainedModel | None) -> tuple[Hashable, ...]:
    """A key for the kind of passes that this call runs, on which their costs depend: "auto" is eager until there is a file."""
    by_kernel = (model is not None and linears.num_by_kernel(model) for model in models)
    return (compile, *(compile and pool.has_artifact(model) for model in models), *by_kernel)


def uncompilable_reason(model: PreTrainedModel) -> str | None:
    """Why passes of `model`, which takes the ragged path, cannot be compiled; `None` if they can."""
    return eager_reason(model) or artifacts.unsupported_reason(model)


def eager_reason(model: PreTrainedModel) -> str | None:
    """Why they can neither be compiled nor captured; `None` if they can."""
    if not takes_masks(model):
        return "reads prompts by an attention that takes no explicit mask"
    for name, module in model.named_modules():
        if placement_hook(module) is not None:
            return f"is spread over devices or offloaded, by a hook on {name or 'the model'}"
        if hasattr(module, "base_layer"):
            return f"has adapters, which are switched on and off outside of a pass ({name})"
    if is_sharded(model) or group_of(model) is not None:
        return "is run by several processes, which wait for each other inside of a pass"
    if getattr(model, "hf_quantizer", None) is not None and not model.hf_quantizer.is_compileable:
        return "is quantised in a way that does not compile"
    return None


def compiled_pass(model: PreTrainedModel, execution: Execution, recorded: tuple[int, ...] = ()) -> CompiledPass | None:
    """The pass of `model`, as it is now, that was compiled ahead of time; `None`: run it eagerly.

    Args:
        recorded: the hidden states that it returns as well.
    """
    if not execution.compile:
        return None
    if (reason := uncompilable_reason(model)) is not None:
        if execution.compile is True:
            warnings.warn(NOT_COMPILED.format(type(model).__name__, f"it {reason}"), stacklevel=3)
        return None
    kept = pool.kept(model).artifacts
    if recorded not in kept and (run := _found(model, execution.compile is True, recorded)) is not None:
        kept[recorded] = run
    return kept.get(recorded)


def _found(model: PreTrainedModel, waits: bool, recorded: tuple[int, ...]) -> CompiledPass | None:
    if waits:
        try:
            artifacts.make(model, recorded)
        except artifacts.CannotCompile as error:
            warnings.warn(NOT_COMPILED.format(type(model).__name__, error), stacklevel=4)
            return None
    run = artifacts.find(model, recorded)
    has_decoded = kept_with(model).get(note_decoded, 0.0) >= ENOUGH_SECONDS
    if run is None and has_decoded and artifacts.pays(model):
        artifacts.start(model, recorded)
    return run
