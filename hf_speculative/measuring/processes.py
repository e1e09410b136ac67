"""Share one evaluation among processes, each with its own batches: `accelerate launch -m hf_speculative eval ...`."""

import os
from dataclasses import dataclass
from typing import Any

from torch import distributed

from ..models import group_of, is_sharded


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

    def gather_first(self, entry: Any) -> Any:
        """The first rank's entry where the ranks share a model, so that all decide alike; else `entry`."""
        return self.gather([entry])[0] if self.shares_model else entry
