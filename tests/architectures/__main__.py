"""Build every model type tiny and random, compare speculative decoding with plain `generate`, and write the results
to docs/supported-models.md. Fails if any type gives other tokens than plain decoding, or an error that is no refusal."""

import argparse
import sys
from collections import Counter

from rich.progress import Progress

from . import page
from .check import MAPPINGS, types_of
from .runner import run

BAD = {"wrong", "raised"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.architectures", description=__doc__)
    parser.add_argument("--mapping", choices=MAPPINGS, action="append", help="only these mappings")
    parser.add_argument("--types", help="only these model types, with commas between")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=120, help="time limit a type")
    parser.add_argument("--gigabytes", type=float, default=12, help="address space a type may take")
    parser.add_argument("--page", action="store_true", help="write the page again from the results kept, run nothing")
    arguments = parser.parse_args()
    if arguments.page:
        page.write()
        return 0

    wanted = arguments.types.split(",") if arguments.types else None
    jobs = [
        (mapping, model_type)
        for mapping in arguments.mapping or MAPPINGS
        for model_type in types_of(mapping)
        if wanted is None or model_type in wanted
    ]
    results = []
    with Progress() as progress:
        task = progress.add_task("types", total=len(jobs))
        for result in run(jobs, arguments.jobs, arguments.seconds, arguments.gigabytes):
            results.append(result)
            progress.advance(task)
            if wanted is not None or result.outcome in BAD:
                progress.print(f"{result.mapping}/{result.model_type}: {result.outcome} {result.message}", markup=False)
    for mapping in MAPPINGS:
        counts = Counter(result.outcome for result in results if result.mapping == mapping)
        if counts:
            print(mapping, dict(counts))
    if wanted is None and arguments.mapping is None:  # a part of the types is no result to keep
        page.save(results)
        page.write()
    return int(any(result.outcome in BAD for result in results))


if __name__ == "__main__":
    sys.exit(main())
