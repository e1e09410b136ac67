"""Task scores, which show on the user's references that speculation does not change quality.

A score is a function of the lists `predictions` and `references` that returns a number or a dict of numbers. It may also be an
object with `compute(predictions=, references=)`, as in the library `evaluate`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pkgutil import resolve_name
from typing import Any

Score = Callable[[Sequence[str], Sequence[Any]], "float | Mapping[str, float]"]


def exact_match(predictions: Sequence[str], references: Sequence[Any]) -> dict[str, float]:
    """The share of texts that equal their reference, ignoring white space at both ends."""
    pairs = zip(predictions, references, strict=True)
    matches = [text.strip() == str(expected).strip() for text, expected in pairs]
    return {"exact_match": sum(matches) / len(matches)}


def resolve(score: Any) -> Score:
    """Return the score function of a function, an object with `compute`, `"exact_match"` or `"module:name"`.

    Raises:
        ValueError, TypeError: it is none of these.
    """
    if isinstance(score, str):
        if score == "exact_match":
            return exact_match
        if not all(score.partition(":")):
            raise ValueError(f"`score={score!r}` is not exact_match; your own is given as module:function.")
        try:
            score = resolve_name(score)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"`score={score}` cannot be imported: {error}.") from error
    if hasattr(score, "compute"):
        compute = score.compute
        return lambda predictions, references: compute(predictions=predictions, references=references)
    if not callable(score):
        raise TypeError(f"`score` is of type {type(score).__name__}: pass a function of predictions and references.")
    return score


def numbers(result: Any, name: str) -> dict[str, float | None]:
    """The numbers that a score returned, by name; `None` for nan, other entries left out."""
    found = {name: result} if not isinstance(result, Mapping) else result
    values = {str(key): float(value) for key, value in found.items() if isinstance(value, Real)}
    if not values:
        raise TypeError(f"the score returned {result!r}: a number or a dict of numbers is needed.")
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
