"""Read prompts one at a time, so that the bits of a row do not depend on the others'."""

from ..interfaces import CachedModel
from ..types import Batch


def read_alone(model: CachedModel, rows: Batch, lanes: list[int]) -> None:
    """Read the prompt of row i of `rows` for `lanes[i]`, each text once; its last token is left to the next pass."""
    texts: dict[tuple[int, ...], list[int]] = {}
    for index, text in enumerate(rows.history):
        texts.setdefault(tuple(text), []).append(index)
    for indices in texts.values():
        one, alone = rows.part(indices[:1]), model.fresh()
        alone.reads_alone = False
        alone.prefill(one)
        model.num_forwards = alone.num_forwards
        for index in indices:
            model.take(alone, [lanes[index]])
        alone.release()
