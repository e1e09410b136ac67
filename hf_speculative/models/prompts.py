"""Read prompts in several passes: each alone, or those of similar lengths together."""

from ..interfaces import CachedModel
from ..types import Batch

#: columns of a prompt that take as long as starting a pass, which reads all weights: on a CPU, and elsewhere (assumed)
A_PASS, A_PASS_ELSEWHERE = 64, 2048


def read_alone(model: CachedModel, rows: Batch, lanes: list[int]) -> None:
    """Read the prompt of row i of `rows` for `lanes`, each text once; its last token is left to the next pass."""
    texts: dict[tuple[int, ...], list[int]] = {}
    for index, text in enumerate(rows.history):
        texts.setdefault(tuple(text), []).append(index)
    for indices in texts.values():
        read(model, rows.part(indices[:1]), [[lanes[index]] for index in indices])


def read(model: CachedModel, rows: Batch, places: list[list[int]]) -> None:
    """Read prompts in a pass of their own, for each of `places`: lanes for all of `rows`."""
    apart = model.fresh()
    apart.reads_alone = False
    apart.prefill(rows)
    model.num_forwards = apart.num_forwards
    for lanes in places:
        model.take(apart, lanes)
    apart.release()


def by_length(lengths: list[int], a_pass: int) -> list[list[int]]:
    """Group rows by the lengths of their prompts, so that passes as wide as their longest row have the fewest columns.

    Each pass counts as `a_pass` columns more. Nothing if one pass over all rows has as few.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    best: list[tuple[int, list[list[int]]]] = [(0, [])]
    for end in range(1, len(order) + 1):
        ways = ((best[start][0] + (end - start) * lengths[order[end - 1]] + a_pass, start) for start in range(end))
        columns, start = min(ways)
        best.append((columns, [*best[start][1], order[start:end]]))
    columns, groups = best[-1]
    # Behind several passes comes one more, for the last tokens.
    return groups if columns < len(order) * max(lengths) else []
