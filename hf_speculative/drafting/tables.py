"""Warm tables: likely continuations of tokens and n-grams, learned from a target's own answers.

`hf-speculative train TARGET --head tables` writes a folder for `draft_model="folder"`. Token recycling (Luo et al. 2024,
arXiv 2408.08696) and suffix copies (Oliaro et al. 2024, arXiv 2411.04975) start from the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models import num_logits
from ..models.model_state import kept_with
from ..reports.files import named
from .proposers import NUM_SUCCESSORS, CorpusSuffix, PromptSuffix, Proposer, Recycling
from .suffix.store import SuffixStore
from .texts import GuessingSource

#: files of a folder with tables: answers, and the tokens that followed each token
STORE, SUCCESSORS = "answers.safetensors", "successors.safetensors"


@dataclass(frozen=True, eq=False)
class Tables:
    """What was learned of a target.

    Attributes:
        store: its answers.
        successors: `(vocab, NUM_SUCCESSORS)` int32, the likeliest tokens after each token, the likeliest first; -1 for none.
    """

    store: SuffixStore
    successors: np.ndarray

    def save(self, folder: Path) -> None:
        """Write both into a folder, which is made if need be; of the successors, those of tokens that were seen."""
        seen = np.flatnonzero((self.successors >= 0).any(1)).astype(np.int32)
        tensors = {
            "tokens": torch.from_numpy(seen),
            "successors": torch.from_numpy(self.successors[seen].astype(np.int32)),
            "vocab_size": torch.tensor(len(self.successors)),
        }
        with named(folder, "what was learned is kept"):
            folder.mkdir(parents=True, exist_ok=True)
            self.store.save(folder / STORE)
            save_file(tensors, folder / SUCCESSORS)

    @classmethod
    def load(cls, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> Tables:
        """Read what `save` wrote.

        Raises:
            ValueError: a file is damaged or another one, or the tables are of another tokenizer.
        """
        store = SuffixStore.load(folder / STORE, tokenizer)
        try:
            tensors = load_file(folder / SUCCESSORS)
            table = np.full((int(tensors["vocab_size"]), NUM_SUCCESSORS), -1, dtype=np.int32)
            table[tensors["tokens"].numpy()] = tensors["successors"].numpy()
            if table.min(initial=-1) < -1 or table.max(initial=-1) >= len(table):
                raise ValueError(f"ids outside its vocabulary of {len(table)}")
        except (SafetensorError, KeyError, IndexError, ValueError, OSError) as error:
            raise ValueError(f"{folder / SUCCESSORS} is damaged ({error}): make the tables anew.") from error
        return cls(store, table)


def holds_tables(folder: str | Path) -> bool:
    """Whether a folder holds tables."""
    return (Path(folder) / SUCCESSORS).is_file()


class TablesSource(GuessingSource):
    """Recycling and copies, as `draft_model="auto"` has them, that begin with the `Tables` given."""

    method = name = "tables"

    def check(self, model: PreTrainedModel) -> None:
        size = num_logits(model)
        if len(self.given.successors) != size:
            sizes = f"a vocabulary of {len(self.given.successors)} tokens, and the target's has {size}"
            way_out = "make tables of this target, `hf-speculative train TARGET --head tables`"
            raise ValueError(f"`draft_model`: these tables are of {sizes}: {way_out}.")
        self.given.store.check_vocabulary(size)

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        recycling = kept_with(model).setdefault((TablesSource, self.given), Recycling())
        if not len(recycling.table):
            recycling.table = self.given.successors.copy()
        return [recycling, PromptSuffix(), CorpusSuffix(self.given.store, learns=False)]
