"""Products of a few columns with all weights of SmolLM2's linear layers in turn, by kernel, and the time of reading them.

python examples/bench/products.py

Prints a Markdown table of milliseconds: medians of the repeats, all kernels in turn.
"""

import statistics
import time

import torch
from torch.nn import functional

import hf_speculative as hs
from hf_speculative.models import native

COLUMNS, REPEATS = (1, 3, 5, 9, 17), 7
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> None:
    if (reason := native.no_kernel_reason()) is not None:
        raise SystemExit(reason)
    target, *_ = hs.example_pair()
    weights = [module.weight.detach() for module in target.modules() if isinstance(module, torch.nn.Linear)]
    ways = {"float32: reading alone": (torch.float32, lambda input, weight: weight.sum(), weights)}
    for name, dtype in FORMATS.items():
        own = [weight.to(dtype) for weight in weights]
        ways[f"{name}: torch"] = dtype, functional.linear, own
        ways[f"{name}: our kernel"] = dtype, native.linear, own
    print(f"| | {' | '.join(map(str, COLUMNS))} |\n|{'---|' * (1 + len(COLUMNS))}")
    found: dict[str, list[str]] = {name: [] for name in ways}
    for num_columns in COLUMNS:
        inputs = [torch.randn(num_columns, weight.shape[1]) for weight in weights]
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(REPEATS):
            for name, (dtype, product, own) in ways.items():
                given = [input.to(dtype) for input in inputs]
                start = time.perf_counter()
                for input, weight in zip(given, own, strict=True):
                    product(input, weight)
                times[name].append(1e3 * (time.perf_counter() - start))
        for name, measured in times.items():
            found[name].append(f"{statistics.median(measured):.1f}")
    for name, cells in found.items():
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
