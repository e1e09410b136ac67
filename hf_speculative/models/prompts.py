"""Read prompts in several passes: each alone, or those of similar lengths together."""

import torch

from ..interfaces import CachedModel
from ..types import Batch

#: columns of a prompt that take as long as starting a pass, which reads all weights: on a CPU, and elsewhere (assumed)
A_PASS, A_PASS_ELSEWHERE = 64, 2048


def read_alone(model: CachedModel, rows: Batch, lanes: list[int]) -> None:
    """Read the prompt of row i of `rows` for `lanes[i]`, each text once; its last token is left to the next pass."""
    texts: dict[tuple[int, ...], list[int]] = {}
    for index, text in enumerate(rows.history):
        texts.setdefault(tuple(text), []).append(index)
    for indices in texts.values():
        read(model, rows.part(indices[:1]), [[lanes[index]] for index in indices])


def read(model: CachedModel, rows: Batch, places: list[list[int]]) -> None:
    """Read the prompts of `rows` in a pass of their own, up to their last tokens.

    Args:
        rows: a part of a batch.
        places: lanes that get what was read, one for each of `rows`; more than once where rows have equal texts.
    """
    apart = model.fresh()
    apart.reads_alone = False
    apart.prefill(rows)
    model.num_forwards = apart.num_forwards
    for lanes in places:
        model.take(apart, lanes)


def by_length(lengths: list[int], device: torch.device) -> list[list[int]]:
    """Group rows by the lengths of their prompts, for the least time if each group is read in a pass.

    A pass takes the time of its rows times the longest of them, in columns, and of as many more as starting one takes.

    Returns:
        Rows of each pass; empty if one pass over all rows takes as little time.
    """
    a_pass = A_PASS if device.type == "cpu" else A_PASS_ELSEWHERE
    if len(lengths) * max(lengths) - sum(lengths) <= 2 * a_pass:
        return []
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    best: list[tuple[int, list[list[int]]]] = [(0, [])]
    for end in range(1, len(order) + 1):
        ways = ((best[start][0] + (end - start) * lengths[order[end - 1]] + a_pass, start) for start in range(end))
        columns, start = min(ways)
        best.append((columns, [*best[start][1], order[start:end]]))
    columns, groups = best[-1]
    # Behind several passes comes one more, for the last tokens: it and the one pass over all rows cancel out.
    return groups if columns < len(order) * max(lengths) else []
