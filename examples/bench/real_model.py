"""SmolLM2 on eight questions, in its chat template: plain `generate`, transformers' prompt lookup and this package in turn.

python examples/bench/real_model.py [--tokens 128] [--repeats 1] [--temperature 0.8] [--suite gsm8k] [--openvino PYTHON]
                                    [--model FOLDER] [--draft-model FOLDER] [--device cuda] [--dtype bfloat16]

Prints a Markdown table: whole calls over plain `generate`, the median over questions and repeats with quartiles, and tokens
a target pass. On a CPU passes are compiled before the first call that counts, as for a process that finds their files.
Another model than SmolLM2, by `--model`, has no tables, and reads plain prompts if it has no chat template.
With OpenVINO GenAI in turn as well, if named the Python of an environment with optimum-intel, see peer_openvino.py.
"""

import argparse
import statistics
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_speculative as hs
from hf_speculative.command.prompts import QUESTIONS
from hf_speculative.measuring.suites import questions
from hf_speculative.models.model_state import keeping
from hf_speculative.reports.timing import timed


def ways(load, drafts, tokenizer, exporter, folder):
    """Each way: its name, a model of its own, keywords of `generate`, and the batch sizes that it takes."""
    plain, default = load(), load()
    optimize = True if plain.device.type == "cpu" else "auto"  # compiling for a GPU takes minutes
    others, drafted = [], []
    if exporter:
        from peer_openvino import OpenVino, exported

        exported(exporter, {"target": plain}, tokenizer, folder)
        lookup = {"num_assistant_tokens": 5, "max_ngram_size": 3}
        others = [
            ("OpenVINO GenAI", OpenVino(folder), {}, (1, 8)),
            ("OpenVINO GenAI, prompt lookup", OpenVino(folder, prompt_lookup=True), lookup, (1, 8)),
        ]
    hs.attach(default, optimize=optimize)
    for name, draft in drafts.items():
        model = hs.attach(load(), draft, optimize=optimize)
        drafted += [
            (f"`attach(target, {name})`", model, {}, (1, 8)),
            (f"`attach(target, {name})`, `num_draft_tokens=3`", model, {"num_draft_tokens": 3}, (1, 8)),
        ]
    return [
        ("plain `generate`", plain, {}, (1, 8)),
        ("transformers' prompt lookup", plain, {"prompt_lookup_num_tokens": 10}, (1,)),
        *others,
        ("`attach(target)`, calls with `draft_model=None`", default, {"draft_model": None}, (1, 8)),
        ("`attach(target, optimize=False)`", hs.attach(load(), optimize=False), {}, (1, 8)),
        ("`attach(target)`", default, {}, (1, 8)),
        *drafted,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.0, help="of sampled calls with top_p 0.95; 0 is greedy")
    parser.add_argument("--suite", help="eight questions of it instead of ours: NAME or NAME=FILE, as in `bench`")
    parser.add_argument("--openvino", metavar="PYTHON", help="OpenVINO as well, exported by this environment")
    parser.add_argument("--model", metavar="FOLDER", help="another model")
    parser.add_argument("--draft-model", metavar="FOLDER", help="a draft of the model, such as a head")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    sampling = {"do_sample": False}
    if given.temperature:
        sampling = {"do_sample": True, "temperature": given.temperature, "top_p": 0.95, "top_k": 0}
    drafts = {}
    if given.model:
        tokenizer = AutoTokenizer.from_pretrained(given.model)
    else:
        _, drafts["tables"], tokenizer = hs.example_pair()
    if given.draft_model:
        drafts["draft"] = given.draft_model

    def load():
        model = AutoModelForCausalLM.from_pretrained(given.model) if given.model else hs.example_pair()[0]
        return model.to(given.device, getattr(torch, given.dtype))

    tokenizer.padding_side = "left"
    asked = [row["turns"][0] for row in questions(given.suite, len(QUESTIONS))] if given.suite else QUESTIONS
    texts = asked
    if tokenizer.chat_template:
        chats = [[{"role": "user", "content": question}] for question in asked]
        texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    found: dict[tuple[str, int], tuple[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tried = ways(load, drafts, tokenizer, given.openvino, Path(folder))
    for size in (1, 8):
        batches = [texts[first : first + size] for first in range(0, len(texts), size)]
        special = {"add_special_tokens": not tokenizer.chat_template}
        inputs = [tokenizer(batch, return_tensors="pt", padding=True, **special).to(given.device) for batch in batches]
        mine = [way for way in tried if size in way[3]]
        times: dict[str, list[float]] = {name: [] for name, *_ in mine}
        passes, kept = dict.fromkeys(times, 0), {}
        repeats = given.repeats * (1 if size == 1 else 3)  # of a batch of all questions there is one call each
        for repeat in range(repeats + 1):
            for number, one in enumerate(inputs if repeat else inputs[:1]):
                turn = (number + repeat) % len(mine)
                for name, model, kwargs, _ in mine[turn:] + mine[:turn]:
                    call = {**one, "max_new_tokens": given.tokens, "min_new_tokens": given.tokens, **sampling}
                    torch.manual_seed(0)
                    # Answers are kept for later calls: each way knows its own of this repeat alone.
                    own = hasattr(model, "config")
                    keeps = keeping(model, kept.setdefault((name, repeat), {})) if own else nullcontext()
                    ends = {"pad_token_id": tokenizer.eos_token_id} if own else {}
                    with keeps, hs.record() as stats:
                        _, seconds = timed(partial(model.generate, **call, **kwargs, **ends), given.device)
                    if repeat:
                        times[name].append(seconds)
                        passes[name] += stats.num_target_forwards
        for name, *_ in mine:
            ratios = [plain / own for plain, own in zip(times[mine[0][0]], times[name], strict=True)]
            length = f"{given.tokens * len(ratios) / passes[name]:.2f}" if passes[name] else ""
            found[name, size] = shown(ratios), length
    print("| way | batch 1 | batch 8 | tokens a pass |\n|---|---|---|---|")
    for name, *_ in tried:
        cells = [found.get((name, size), ("", ""))[0] for size in (1, 8)]
        print(f"| {name} | {' | '.join(cells)} | {found[name, 1][1]} |")


def shown(ratios: list[float]) -> str:
    if len(ratios) < 2:
        return f"{ratios[0]:.2f}x"
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.2f}x ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
