"""Keep costs of rounds on disk beside the compiled files, so that a process starts from what earlier ones learned."""

import json
import logging
import os
from contextlib import suppress

import torch
from transformers import PreTrainedModel

from ..models.described import FOLDER, NOT_OF_PASSES, OFF, digest, folder, processor
from ..reports import files
from ..schedules import RoundCosts

#: a file is written again once this many times as many rounds were timed: few writes, and an interrupted process loses little
MORE = 1.5
#: changes with what a file holds, so that older ones are not read
FORMAT = 2
logger = logging.getLogger(__name__)


def restore(costs: RoundCosts, key: tuple, target: PreTrainedModel, draft: object) -> None:
    """Start `costs` of calls with `key` from their file, if there is one.

    A draft that is no model has none: its class does not say what it costs.
    """
    if os.environ.get(FOLDER) == OFF or not isinstance(draft, PreTrainedModel):
        return
    device = torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else processor()
    machine = [device, torch.backends.cpu.get_cpu_capability(), torch.__version__]
    configs = [model.config.to_dict() | dict.fromkeys(NOT_OF_PASSES) for model in (target, draft)]
    name = digest([FORMAT, machine, repr((key, configs))])[:24]
    costs.path = folder() / "costs" / f"{type(target).__name__}-{name}.json"
    try:
        costs.restore(json.loads(costs.path.read_text()))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:  # whatever the file holds
        logger.warning(f"Costs of drafts are measured anew: {costs.path} cannot be read ({error}).")


def write(costs: RoundCosts) -> None:
    """Write `costs`, if much was learned since; a folder that cannot be written to keeps nothing."""
    if costs.path is None or costs.num_timed < max(1, MORE * costs.num_stored):
        return
    costs.num_stored = costs.num_timed
    with suppress(OSError, ValueError):
        costs.path.parent.mkdir(parents=True, exist_ok=True)
        files.write(costs.path, json.dumps(costs.stored()))
