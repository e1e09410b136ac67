"""A grammar, applied so that each position sees exactly its own prefix."""

from torch import Tensor

from ..grammar.processor import GrammarProcessor
from ..types import columns_from
from .prefixes import Prefixes


class AfterEachPrefix:
    """A `GrammarProcessor` for rows of their own length and all positions of a chain or tree.

    Args:
        processor: of the call; `GrammarProcessor.begin` has told it of the rows.
    """

    def __init__(self, processor: GrammarProcessor):
        self.processor = processor

    def __call__(self, prefixes: Prefixes, scores: Tensor) -> Tensor:
        batch = prefixes.batch
        positions = range(prefixes.first, prefixes.first + prefixes.num_positions)
        num_tokens = positions.stop - 1
        drafted: list[list[int]] = [[]] * len(batch.rows)
        if num_tokens:
            drafted = batch.tokens.gather(1, columns_from(batch.lengths, num_tokens)).tolist()
        for lane, (row, tokens) in enumerate(zip(batch.rows, drafted, strict=True)):
            paths: list[tuple[int, ...]] = [()]
            for node, token in enumerate(tokens):
                parent = node - 1 if prefixes.tree is None else prefixes.tree.host_parents[lane][node]
                paths.append((*paths[parent + 1], token))
            walk, text = self.processor.walks[row], batch.history[lane]
            # In the order of the paths a tree is walked once, each branch to its end.
            for place in sorted(positions, key=paths.__getitem__):
                walk.mask(text, paths[place]).apply(scores[lane, place - prefixes.first])
        return scores
