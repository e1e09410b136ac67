"""Apply a grammar so that each position sees exactly its own prefix."""

from torch import Tensor

from ..grammar.processor import GrammarProcessor
from .prefixes import Prefixes


class AfterEachPrefix:
    """A `GrammarProcessor` for rows of their own length and all positions of a chain or tree.

    Args:
        processor: of the call; `GrammarProcessor.begin` has told it of the rows.
    """

    def __init__(self, processor: GrammarProcessor):
        self.processor = processor

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        positions = range(prefixes.first, prefixes.first + prefixes.num_positions)
        for lane, (row, text) in enumerate(zip(prefixes.batch.rows, prefixes.batch.history, strict=True)):
            walk, paths = self.processor.walks[row], prefixes.host_paths[lane]
            # In the order of the paths a tree is walked once.
            for place in sorted(positions, key=paths.__getitem__):
                walk.mask(text, paths[place]).apply(scores[lane, place - prefixes.first])
        return scores
