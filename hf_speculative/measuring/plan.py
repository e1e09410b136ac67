"""Plan an evaluation, and continue the file of an earlier run, recognised by fingerprints of its arguments.

Processes share one, each with its own batches: `accelerate launch -m hf_speculative eval ...`.
"""

import glob
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, distributed, nn
from transformers import GenerationConfig

from ..call.configuration import SpeculativeConfig
from ..generation import attached_to
from ..models import group_of, is_sharded
from ..reports.environment import environment
from .decoder import Decoder
from .journal import FORMAT, Journal
from .results import FEWEST_TOKENS, Evaluation
from .settings import Setting, with_baselines


def is_first_process() -> bool:
    """Whether this process prints."""
    return int(os.environ.get("RANK", "0")) == 0


@dataclass(frozen=True)
class Processes:
    """The rank of this process, and the number of processes.

    Attributes:
        writes: this process writes a file; among ranks of one sharded model, only the first does.
        shares_model: the ranks run one sharded model and decode the same prompts.
    """

    rank: int = 0
    count: int = 1
    writes: bool = True
    shares_model: bool = False

    @classmethod
    def of(cls, model) -> "Processes":
        """From the launcher's environment and the model's sharding.

        Raises:
            ValueError: the ranks are several copies of a model that is sharded itself.
        """
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        rank, group = int(os.environ["RANK"]), group_of(model)
        if group is not None and distributed.get_world_size(group) < count:
            shards = distributed.get_world_size(group)
            raise ValueError(f"the model is sharded over {shards} of {count} processes: evaluate one copy of it.")
        if group is not None or is_sharded(model):
            return cls(writes=rank == 0, shares_model=True)
        try:
            from accelerate import PartialState
        except ImportError as error:
            raise ImportError("several processes need accelerate: pip install 'hf_speculative[accelerate]'.") from error
        state = PartialState(cpu=model.device.type == "cpu")  # joins the others; it does not choose gloo by itself
        if state.num_processes != count:
            raise RuntimeError(f"WORLD_SIZE is {count}, but accelerate joined {state.num_processes} processes.")
        return cls(rank, count)

    def gather(self, entries: list[Any]) -> list[Any]:
        """Gather the entries of all processes in every process, by rank; of ranks that share a model, the first one's."""
        if self.shares_model:
            told = [entries]
            distributed.broadcast_object_list(told, src=0)
            return told[0]
        if self.count == 1:
            return entries
        from accelerate.utils import gather_object

        return gather_object(entries)


#: entries of each weight that are hashed
NUM_SAMPLES = 1024
#: the golden ratio of 2^32, whose multiples are spread over all rows and columns of a matrix (Knuth's multiplicative hashing)
SPREAD = 2654435769


def fingerprint(value: Any) -> str:
    """Hash `value` to sixteen hexadecimal digits, the same in every process.

    Of a model, a sample of each weight is hashed; of other objects, what `datasets` hashes; of objects that cannot be pickled,
    such as a generator, the type.
    """
    from datasets.fingerprint import Hasher  # a second of imports

    if isinstance(value, tuple):
        value = [*map(fingerprint, value)]
    try:
        return Hasher.hash(list(_weights(value)) if isinstance(value, nn.Module) else value)
    except Exception:  # it cannot be pickled
        return Hasher.hash([type(value).__module__, type(value).__qualname__])


def _weights(model: nn.Module) -> Iterator[Any]:
    """Yield name, dtype, shape and a sample of each weight; without buffers made from the config, such as rotary tables."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                tensors[f"{prefix}.{name}"] = buffer
    for name, tensor in sorted(tensors.items()):
        yield from (name, str(tensor.dtype), list(tensor.shape), *_entries(tensor))


def _entries(tensor: Tensor) -> Iterator[bytes]:
    """Yield the bytes of some entries of a sharded, quantized, sparse or dense tensor; none of a meta tensor."""
    if hasattr(tensor, "full_tensor"):  # a shard of one
        tensor = tensor.full_tensor()
    if hasattr(tensor, "__tensor_flatten__"):  # a quantized one is made of others
        for name in tensor.__tensor_flatten__()[0]:
            yield from _entries(getattr(tensor, name))
    elif not tensor.is_meta:
        tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
        entries = tensor.detach().reshape(-1).view(torch.uint8).view(tensor.numel(), tensor.element_size())
        if len(entries) > NUM_SAMPLES:
            entries = entries[torch.arange(NUM_SAMPLES, device=tensor.device) * SPREAD % len(entries)]
        yield entries.cpu().numpy().tobytes()


#: what is attached and does not hold for an evaluation's calls: settings, seed or `optimize` of the header say it
OF_NO_CALL = ("num_draft_tokens", "schedule", "draft_tokenizer", "generator", "optimize", "learn")
#: fields of the header that have to be equal for a file to be continued; messages do not print the digests
DIGESTS = ("weights", "prompts")
FIXED = (*DIGESTS, "target", "dtype", "batch_size", "repeats", "seed", "generate", "generation_config", "optimize", "device")


def files_of_ranks(path: Path) -> list[Path]:
    """Files that other processes write beside `path`; without those that a kill left half written, whose names go on."""
    found = sorted(path.parent.glob(f"{glob.escape(path.name)}.rank*"))
    return [one for one in found if one.suffix.removeprefix(".rank").isdigit()]


@dataclass
class Plan:
    """The header and settings of an evaluation, its file of results, and the processes that share it."""

    header: dict[str, Any]
    settings: list[Setting]
    path: Path | None
    processes: Processes

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file against other evaluations.

        The first process holds the lock for all. The operating system releases it if the process is killed; the lock file may
        stay.

        Raises:
            ValueError: another evaluation holds it; in every process.
        """
        if self.path is None:
            yield
            return
        lock, refused = FileLock(f"{self.path}.lock"), []
        if self.processes.rank == 0:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                refused.append("another evaluation is writing it")
            except OSError as error:
                refused.append(f"it cannot be locked, {error}")
        for reason in self.processes.gather(refused):
            raise ValueError(f"`results={str(self.path)!r}`: {reason}. Wait, then call again, or name another file.")
        try:
            yield
        finally:
            lock.release()

    def known(self) -> Journal:
        """Read what earlier runs recorded in the files of all processes.

        Raises:
            ValueError: a file holds another evaluation.
        """
        paths = [] if self.path is None else [self.path, *files_of_ranks(self.path)]
        found = [Journal.read(path) for path in paths if path.exists() and path.stat().st_size]
        for journal in found:
            self.check(journal)
        return self.merged(self.processes.gather(found))

    def merged(self, journals: list[Journal]) -> Journal:
        """Merge journals: each call once, this run's header, all settings."""
        header = dict(self.header)
        settings = [Setting(**values) for journal in journals for values in journal.header["settings"]]
        unique = {setting.name: setting for setting in [*settings, *self.settings]}
        header["settings"] = [setting.to_dict() for setting in with_baselines(unique.values())]
        headers = [*(journal.header for journal in journals), self.header]
        for of_drafts in ("drafts", "draft_weights"):
            header[of_drafts] = {name: value for h in headers for name, value in h[of_drafts].items()}
        merged = Journal(header)
        for journal in journals:
            merged.merge(journal)
        return merged

    @property
    def own_path(self) -> Path | None:
        """The file that this process writes: the first process the given one, others a file beside it."""
        if self.path is None or not self.processes.writes:
            return None
        return self.path.with_name(f"{self.path.name}.rank{self.processes.rank}") if self.processes.rank else self.path

    def finish(self, evaluation: Evaluation) -> None:
        """Write all calls to one file, in order, and delete the files of other processes."""
        if self.path is not None:
            evaluation.journal.write(self.path)
            for path in files_of_ranks(self.path):
                path.unlink()

    def check(self, journal: Journal) -> None:
        """Refuse to continue a file that holds another evaluation."""
        headers = journal.header, json.loads(json.dumps(self.header))
        theirs, ours = ({**header, "device": header["environment"]["device"]} for header in headers)
        other = {name: (theirs.get(name), ours[name]) for name in FIXED if theirs.get(name) != ours[name]}
        if other:
            name, (before, now) = next(iter(other.items()))
            if isinstance(before, dict) and isinstance(now, dict):
                key = next(key for key in before | now if before.get(key) != now.get(key))
                name, before, now = f"{name}.{key}", before.get(key), now.get(key)
            which = f"of other {name}" if name in DIGESTS else f"whose {name} is {before!r} and not {now!r}"
            raise ValueError(f"`results={str(self.path)!r}` holds another evaluation, {which}: name another file.")
        for name in sorted({values.get("draft_model") for values in theirs["settings"]} & ours["drafts"].keys()):
            before, source = theirs["drafts"].get(name), ours["drafts"][name]
            if before != source or theirs["draft_weights"][name] != ours["draft_weights"][name]:
                difference = f"from {before!r} and not {source!r}" if before != source else "of other weights"
                found = f"`results={str(self.path)!r}` has another draft {name!r}, {difference}"
                raise ValueError(f"{found}: give this one another name, `draft_model={{name: model}}`.")


def header_of(decoder: Decoder, settings: list[Setting], batch_size: int, repeats: int, processes: Processes) -> dict[str, Any]:
    """Models, options and environment, ready for JSON; the caller adds the data."""
    model, drafts = decoder.target, decoder.drafts
    of_drafts = {name: fingerprint(draft.model) for name, draft in drafts.items()}
    weights, of_drafts = processes.gather([(fingerprint(model), of_drafts)])[0]
    config = attached_to(model)[1] or SpeculativeConfig()
    attached = {name: value for name, value in vars(config).items() if name not in OF_NO_CALL}
    return {
        "format": FORMAT,
        "target": model.config.name_or_path or type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": weights,
        "drafts": {name: draft.source for name, draft in drafts.items()},
        "draft_weights": of_drafts,
        "batch_size": batch_size,
        "repeats": repeats,
        "fewest_tokens": FEWEST_TOKENS,
        "seed": decoder.seed,
        "generate": _described(attached | decoder.kwargs),
        "generation_config": _described(model.generation_config.to_diff_dict()),
        "settings": [setting.to_dict() for setting in settings],
        "optimize": config.optimize,
        "environment": environment(model) | {"processes": processes.count},
    }


def _described(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keywords of `generate` ready for JSON; objects as their type and fingerprint."""

    def plain(value):
        if isinstance(value, GenerationConfig):
            return value.to_diff_dict()
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value if isinstance(value, (str, int, float)) else f"{type(value).__name__} {fingerprint(value)}"

    left_out = ("tokenizer", "return_dict_in_generate", "transformers_version")
    return {name: plain(value) for name, value in kwargs.items() if name not in left_out and value is not None}
