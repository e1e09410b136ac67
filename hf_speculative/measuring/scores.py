"""Task scores: they show, on the user's own references, that speculation leaves the quality as it is.

A score is a function of `predictions` and `references`, two lists of one length, that returns a number or a dict of numbers. Or
it is an object with `compute(predictions=, references=)`, like those of the library `evaluate`.
"""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

Score = Callable[[Sequence[str], Sequence[Any]], "float | Mapping[str, float]"]
#: running what a model wrote is a risk; the variable is that of the library `evaluate`
PERMISSION = "HF_ALLOW_CODE_EVAL"


def exact_match() -> Score:
    """The share of texts that equal their reference, ignoring white space at both ends."""

    def score(predictions: Sequence[str], references: Sequence[Any]) -> dict[str, float]:
        matches = [
            text.strip() == str(expected).strip() for text, expected in zip(predictions, references, strict=True)
        ]
        return {"exact_match": sum(matches) / len(matches)}

    return score


def rouge() -> Score:
    """Mean ROUGE-1, ROUGE-2 and ROUGE-L F-measures, by the package rouge_score."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ImportError("the score `rouge` needs rouge_score: pip install 'hf_speculative[rouge]'.") from error
    names = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(names, use_stemmer=True)

    def score(predictions: Sequence[str], references: Sequence[Any]) -> dict[str, float]:
        found = [scorer.score(str(expected), text) for text, expected in zip(predictions, references, strict=True)]
        return {name: sum(scores[name].fmeasure for scores in found) / len(found) for name in names}

    return score


def pass_at_1(timeout: float = 10.0) -> Score:
    """The share of completions that pass their tests, one sample each (Chen et al. 2021, arXiv 2107.03374).

    References are rows of HumanEval, or of its shape, with `prompt`, `test` and `entry_point`.

    Args:
        timeout: seconds that one program may run.

    Raises:
        PermissionError: it runs code that the model wrote, in a process of its own but with your rights. Allow it by
            `HF_ALLOW_CODE_EVAL=1` in the environment.
    """
    if os.environ.get(PERMISSION) != "1":
        raise PermissionError(
            f"the score `pass@1` runs programs that the model wrote: set {PERMISSION}=1 in the environment to allow it."
        )

    def score(predictions: Sequence[str], references: Sequence[Any]) -> dict[str, float]:
        passed = 0
        for text, row in zip(predictions, references, strict=True):
            program = f"{row['prompt']}{_first_function(text)}\n{row['test']}\ncheck({row['entry_point']})\n"
            passed += _runs(program, timeout)
        return {"pass@1": passed / len(predictions)}

    return score


def _first_function(completion: str) -> str:
    """The completion up to the first line that leaves the function, as HumanEval's stop sequences cut it."""
    ends = [completion.find(stop) for stop in ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(")]
    return completion[: min((end for end in ends if end >= 0), default=len(completion))]


def _runs(program: str, timeout: float) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-I", "-c", program]
        try:
            done = subprocess.run(command, cwd=folder, timeout=timeout, capture_output=True, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


#: makers of scores by name, which raise at once where one cannot be had
SCORES: dict[str, Callable[[], Score]] = {"exact_match": exact_match, "rouge": rouge, "pass@1": pass_at_1}
#: of those, whose reference is the whole row
SCORES_OF_ROWS = ("pass@1",)


def resolve(score: Any) -> Score:
    """The score function for what the user gave: a function, an object with `compute`, one of `SCORES`, or `module:name`.

    Raises:
        ValueError, TypeError: it is none of them.
    """
    if isinstance(score, str):
        module, colon, name = score.partition(":")
        if score in SCORES:
            return SCORES[score]()
        if not colon:
            raise ValueError(
                f"`score={score!r}` is not one of {', '.join(SCORES)}; your own is given as module:function."
            )
        try:
            score = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"`score={module}:{name}` cannot be imported: {error}.") from error
    if hasattr(score, "compute"):
        compute = score.compute
        return lambda predictions, references: compute(predictions=predictions, references=references)
    if not callable(score):
        raise TypeError(
            f"`score` is of type {type(score).__name__}: pass a function of predictions and references, or its name."
        )
    return score


def numbers(result: Any, name: str) -> dict[str, float | None]:
    """What a score returned, by name, `None` for nan. Entries that are not numbers are left out."""
    found = {name: result} if not isinstance(result, Mapping) else result
    values = {str(key): float(value) for key, value in found.items() if isinstance(value, Real)}
    if not values:
        raise TypeError(f"the score returned {result!r}: a number or a dict of numbers is needed.")
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
