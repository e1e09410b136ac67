"""Quality unchanged, speed up: Table 1 of Chen et al. 2023 (arXiv 2302.01318), for the pair that ships with the package.

    pip install rouge_score
    python examples/quality_unchanged.py
    python examples/quality_unchanged.py --limit 100 --max-new-tokens 96

The task is to continue functions of Python's own library. The scores are ROUGE against the real rest of the function, and the
share of functions that are valid Python. Greedy scores are the same to the last digit, since the texts are the same. Sampled
texts differ from run to run, and their scores vary as between two runs of plain decoding.
"""

import ast
import importlib
import inspect
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rouge_score.rouge_scorer import RougeScorer

import hf_speculative as hs

ROUGE = ("rouge2", "rougeL")
MODULES = (
    "argparse",
    "ast",
    "dataclasses",
    "inspect",
    "subprocess",
    "typing",
    "unittest.case",
    "logging",
    "tempfile",
    "shutil",
)


def functions(limit: int) -> list[dict[str, str]]:
    """The first lines of functions as prompts, the rest as references."""
    rows = []
    for source in (inspect.getsource(importlib.import_module(module)) for module in MODULES):
        for node in ast.parse(source).body:
            lines = (ast.get_source_segment(source, node) or "").splitlines(keepends=True)
            if isinstance(node, ast.FunctionDef) and 8 <= len(lines) <= 30:
                rows.append({"prompt": "".join(lines[:5]), "rest": "".join(lines[5:])})
    return rows[:: max(1, len(rows) // limit)][:limit]


def score(predictions, references) -> dict[str, float]:
    """ROUGE of the rest, and how many functions parse once the line that was cut off is left out."""
    whole = [row["prompt"] + text.rpartition("\n")[0] + "\n" for text, row in zip(predictions, references, strict=True)]
    scorer = RougeScorer(ROUGE)
    found = [scorer.score(row["rest"], text) for text, row in zip(predictions, references, strict=True)]
    means = {name: sum(scores[name].fmeasure for scores in found) / len(found) for name in ROUGE}
    return means | {"parses": sum(map(parses, whole)) / len(whole)}


def parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def main(
    limit: Annotated[int, typer.Option(help="Functions.")] = 40,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens for each.")] = 64,
):
    """Score plain and speculative decoding on the same task."""
    target, draft, tokenizer = hs.embedded_pair()
    evaluation = hs.evaluate(
        target,
        draft,
        functions(limit),
        tokenizer=tokenizer,
        num_draft_tokens=(4,),
        temperatures=(0.0, 0.8),
        score=score,
        references=lambda row: row,
        max_new_tokens=max_new_tokens,
    )
    table = Table("", "ROUGE-2", "ROUGE-L", "parses", "ms a token", "speedup")
    for setting in evaluation.settings:
        totals = evaluation.totals(setting)
        figures = [f"{totals.scores[name]:.3f}" for name in (*ROUGE, "parses")]
        speedup = "" if totals.speedup is None else str(totals.speedup)
        table.add_row(setting.name, *figures, f"{1000 / totals.tokens_per_second:.1f}", speedup)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
