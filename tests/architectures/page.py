"""docs/supported-models.md, written from the results of each transformers version in docs/supported-models/."""

import json
from collections import Counter
from pathlib import Path

import torch
import transformers

from .check import MAPPINGS, NEW_TOKENS, Result, types_of

DOCS = Path(__file__).parent.parent.parent / "docs"
FOLDER, PAGE = DOCS / "supported-models", DOCS / "supported-models.md"
OUTCOMES = {
    "ragged": "exact by the ragged path",
    "universal": "exact by the universal path",
    "refused": "refused",
    "unbuilt": "could not be built tiny",
    "raised": "RAISED",
    "wrong": "WRONG",
}
TITLES = {
    "causal": "Causal language models",
    "seq2seq": "Sequence-to-sequence models",
    "speech": "Speech-to-text models",
    "image-text": "Image-text-to-text models",
}
#: types that many people use, and models of them
COMMON = {
    "causal": {
        "llama": "Llama 2 and 3, SmolLM2, TinyLlama, Yi",
        "qwen2": "Qwen 2 and 2.5, DeepSeek R1 distilled",
        "qwen3": "Qwen3",
        "qwen3_moe": "Qwen3 30B-A3B, 235B-A22B",
        "qwen3_next": "Qwen3-Next",
        "qwen3_5_text": "Qwen3.5, text alone",
        "gemma2": "Gemma 2",
        "gemma3_text": "Gemma 3 270M and 1B",
        "gemma4_text": "Gemma 4, text alone",
        "mistral": "Mistral 7B, Zephyr",
        "mixtral": "Mixtral",
        "ministral3": "Ministral 3",
        "phi3": "Phi-3 and 4",
        "gpt2": "GPT-2, DistilGPT2",
        "gpt_neox": "Pythia",
        "gpt_oss": "gpt-oss",
        "opt": "OPT",
        "bloom": "BLOOM",
        "falcon": "Falcon",
        "deepseek_v3": "DeepSeek V3, R1, Kimi K2",
        "glm4_moe": "GLM-4.5 to 4.7",
        "smollm3": "SmolLM3",
        "olmo2": "OLMo 2",
        "granite": "Granite 3",
        "granitemoehybrid": "Granite 4",
        "cohere2": "Command A, R7B",
        "starcoder2": "StarCoder2",
        "lfm2": "LFM2",
        "falcon_h1": "Falcon-H1",
        "nemotron_h": "Nemotron-H, Nemotron 3",
    },
    "seq2seq": {"t5": "T5, FLAN-T5", "bart": "BART", "marian": "Opus-MT", "m2m_100": "M2M100, NLLB"},
    "speech": {"whisper": "Whisper, Distil-Whisper"},
    "image-text": {
        "qwen2_5_vl": "Qwen2.5-VL",
        "qwen3_vl": "Qwen3-VL",
        "gemma3": "Gemma 3 from 4B on",
        "llava": "LLaVA",
        "smolvlm": "SmolVLM",
    },
}
INTRO = """# Supported models

What common types of models get. The [ragged path](caches.md) is the fast one; fast passes are
[compiled on a CPU, captured on a GPU](optimize.md).

{common}

## How this was found

For each model type in transformers' causal-LM, sequence-to-sequence, speech and image-text-to-text mappings, a tiny random
model was built ({built}), and greedy speculative decoding was compared with plain `generate`, token by token:

* in float32, {new_tokens} new tokens, attention windows of 8, with a noisy copy of the target as the draft;
* in batches of three rows of unequal length, of two rows that stay equally long, and of one row;
* with an image or a recording in each row for types of images or speech, and for types of images with text alone as well.

This page is written by

```sh
python -m tests.architectures --jobs 2
```

* *Exact*: all tokens equal plain `generate`'s.
* *Trees*: the logits of a branching tree of draft tokens, in one pass, equal those of its paths one by one, and so do those
  after one of its paths was kept. Types on the universal path are given chains.
* *Refused*: a `ValueError` or `TypeError` by name, before the first forward of the model as a whole. transformers may have run
  an image encoder by then, as part of its own preparation.
* *Could not be built tiny*: no tiny random model ran plain `generate` with text worth comparing, so nothing is known.
  When you use such a type, it is tried by the same check as any other.
"""


def save(results: list[Result]) -> None:
    """This version's results, a line a type."""
    FOLDER.mkdir(exist_ok=True)
    order = list(MAPPINGS)
    rows = []
    for one in sorted(results, key=lambda one: (order.index(one.mapping), one.model_type)):
        row = {"mapping": one.mapping, "type": one.model_type, "class": types_of(one.mapping)[one.model_type]}
        rows.append(row | {name: getattr(one, name) for name in ("outcome", "message", "notes", "trees", "passes")})
    head = {"transformers": transformers.__version__, "torch": torch.__version__}
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    path = FOLDER / f"{transformers.__version__}.json"
    path.write_text(json.dumps(head)[:-1] + f', "results": [\n{lines}\n]}}\n')


def write() -> None:
    PAGE.write_text(render())


def render() -> str:
    """The page: all of the newest version's types, and where an older one differs."""
    versions = [json.loads(path.read_text()) for path in FOLDER.glob("*.json")]
    versions.sort(key=lambda one: [int(part) for part in one["transformers"].split(".")[:3]], reverse=True)
    newest, *older = versions
    numbers = [f"transformers {one['transformers']}" for one in versions]
    parts = [INTRO.format(built=" and ".join(numbers), new_tokens=NEW_TOKENS, common=_common(newest))]
    parts += [_totals(one) for one in versions]
    parts += [_table(mapping, newest, older) for mapping in MAPPINGS]
    return "\n".join(parts)


def _common(version: dict) -> str:
    found = {(row["mapping"], row["type"]): row for row in version["results"]}
    lines = ["| type | models | path | drafts | fast passes |", "|---|---|---|---|---|"]
    for mapping, types in COMMON.items():
        for name, models in types.items():
            row = found[mapping, name]
            shape = "chains, trees" if row["trees"] else "chains"
            lines.append(f"| `{name}` | {models} | {row['outcome']} | {shape} | {_passes(row)} |")
    return "\n".join(lines)


def _passes(row: dict) -> str:
    return "" if row["passes"] is None else ", ".join(row["passes"]) or "none"


def _totals(version: dict) -> str:
    counts = {mapping: Counter[str]() for mapping in MAPPINGS}
    for one in version["results"]:
        counts[one["mapping"]][one["outcome"]] += 1
    shown = [outcome for outcome in OUTCOMES if any(count[outcome] for count in counts.values())]
    lines = [
        f"| transformers {version['transformers']} | types | " + " | ".join(OUTCOMES[one] for one in shown) + " |",
        "|---" * (len(shown) + 2) + "|",
    ]
    for mapping, count in counts.items():
        lines.append(f"| {TITLES[mapping]} | {count.total()} | " + " | ".join(str(count[one]) for one in shown) + " |")
    return "\n".join(lines) + "\n"


def _table(mapping: str, newest: dict, older: list[dict]) -> str:
    lines = [
        f"## {TITLES[mapping]}",
        "",
        "| type | class | result | trees | fast passes | |",
        "|---|---|---|---|---|---|",
    ]
    before = [{row["type"]: row["outcome"] for row in one["results"] if row["mapping"] == mapping} for one in older]
    for one in newest["results"]:
        if one["mapping"] != mapping:
            continue
        remarks = [_short(one["message"])] if one["message"] else []
        remarks += one["notes"] if one["outcome"] != "unbuilt" else []
        for version, outcomes in zip(older, before, strict=True):
            outcome = outcomes.get(one["type"])
            if outcome is None:
                remarks.append(f"not in {version['transformers']}")
            elif outcome != one["outcome"]:
                remarks.append(f"in {version['transformers']}: {OUTCOMES[outcome]}")
        text = "; ".join(remarks).replace("|", "\\|").replace("<", "&lt;")
        trees = {True: "exact", False: "chains only", None: ""}[one["trees"]]
        lines.append(f"| `{one['type']}` | {one['class']} | {OUTCOMES[one['outcome']]} | {trees} | {_passes(one)} | {text} |")
    return "\n".join(lines) + "\n"


def _short(message: str) -> str:
    """A message without its way out, which is the same for all."""
    short = message.split(": pass `draft_model=None`")[0].split(", or pass `draft_model=None`")[0]
    return short.removeprefix("`model`: ")
