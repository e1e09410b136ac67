"""Which modules one greedy `model.generate(**inputs, draft_model=small)` visits, and in which order.

`python -m tests.support.call_path` prints them.
"""

from __future__ import annotations

import sys
from collections import Counter

import hf_speculative as hs


def visited(num_new_tokens: int = 16) -> Counter[str]:
    """Calls into each module of the package, in the order of the first one."""
    for is_traced in (False, True):  # the first call imports what is imported late
        target, draft, tokenizer = hs.embedded_pair()
        inputs = tokenizer(["def main():\n"], return_tensors="pt")
        calls: Counter[str] = Counter()

        def note(frame, event, argument, calls=calls):
            package, _, module = frame.f_globals.get("__name__", "").partition(".")
            if event == "call" and package == hs.__name__:
                calls[module] += 1

        with hs.patch_transformers():
            sys.setprofile(note if is_traced else None)
            try:
                target.generate(**inputs, draft_model=draft, do_sample=False, max_new_tokens=num_new_tokens)
            finally:
                sys.setprofile(None)
    return calls


if __name__ == "__main__":
    for module, num_calls in visited().items():
        print(f"{num_calls:6} {module}")
