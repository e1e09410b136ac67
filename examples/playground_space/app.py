"""The playground as a Space: plain and speculative decoding side by side, round by round.

python examples/playground_space/app.py

Environment: `MODEL` and `DRAFT_MODEL`, names on the Hub; without them, the embedded pair. `METHOD` drafts without a model.
"""

import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # gradio reads it when it is imported

import hf_speculative as hs
from hf_speculative.command.prompts import BEGINNINGS, NUM_PYTHON
from hf_speculative.models.loading import load_model
from hf_speculative.playground.cli import PENALTY
from hf_speculative.playground.page import build, look
from hf_speculative.playground.runs import Models, Settings
from hf_speculative.tokenizers.loading import tokenizer_of, tokenizer_of_draft

MODEL, DRAFT_MODEL, METHOD = (os.environ.get(name) for name in ("MODEL", "DRAFT_MODEL", "METHOD"))

if MODEL is None:
    if DRAFT_MODEL or METHOD:
        raise SystemExit("DRAFT_MODEL and METHOD need a MODEL: set that as well.")
    target, draft, tokenizer = hs.embedded_pair()
    models = Models(target, tokenizer, draft)
    first = Settings(repetition_penalty=PENALTY)
    demo = build(models, "The embedded pair", list(BEGINNINGS[:NUM_PYTHON]), first, max_new_tokens=256)
else:
    target = load_model(MODEL, dtype="auto")
    tokenizer = tokenizer_of(target)
    draft = load_model(DRAFT_MODEL, dtype="auto") if DRAFT_MODEL else None
    own = tokenizer_of_draft(DRAFT_MODEL, tokenizer) if DRAFT_MODEL else None
    models = Models(target, tokenizer, draft, own, METHOD)
    demo = build(models, f"{MODEL} and {DRAFT_MODEL}" if DRAFT_MODEL else MODEL, max_new_tokens=256)

if __name__ == "__main__":
    demo.launch(**look())
