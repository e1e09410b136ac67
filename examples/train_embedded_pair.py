"""Train a small target from the Python source on this machine, and a draft model and an EAGLE-3 head for it.

    python examples/train_embedded_pair.py OUT               # four hours on 2 CPU cores
    python examples/train_embedded_pair.py OUT --rehearsal   # everything runs in a minute or two, nothing is good

Each stage is a folder under OUT, and one that exists is skipped; a stage that was stopped goes on from its last checkpoint:

1. `data`: a byte-level BPE tokenizer, and blocks of tokens;
2. `target`: 12 layers by next-token prediction, with `transformers.Trainer`;
3. `texts.jsonl`: what drafts learn from;
4. `draft` and `head`: by the command `hf-speculative train`.

It ends with the model card: held-out bits per byte, and the acceptance rate of the draft model.
"""

import hashlib
import importlib.metadata
import math
import random
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

import datasets
import torch
import typer
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm.auto import tqdm
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

import hf_speculative as hs

CONTEXT = 512
#: tokens after which the target writes the texts that drafts learn from
PROMPT = 48
#: what the command trains: `--head`, steps, and what else it is told
DRAFTS = {
    "draft": ("layers:2", 2600, []),
    "head": ("eagle3", 2300, ["--learning-rate", "2e-3", "--bf16"]),
}
#: what is kept of a run of the command; the tokenizer is the target's
KEPT = {"config.json", "generation_config.json", "model.safetensors"}
END = "<|endoftext|>"
PAD = "<|pad|>"
#: beside the standard library; all under the MIT, BSD, ISC, Apache or PSF licence, which is checked
PACKAGES = (
    "accelerate aiohttp anyio asttokens attrs babel build click cloudpickle datasets dill evaluate execnet fastapi "
    "filelock fonttools fsspec gradio gradio_client h11 httpcore httpx huggingface_hub ipykernel ipython jedi "
    "jinja2 joblib jsonschema jupyter_client markdown markdown-it-py matplotlib mkdocs more-itertools mpmath mypy "
    "narwhals nbclient nbformat networkx nltk numpy packaging pandas parso peft pip pluggy portalocker "
    "prometheus_client prompt_toolkit psutil pyarrow pydantic pygments pyparsing pytest python-dateutil pyyaml "
    "pyzmq ray referencing requests rich sacrebleu scikit-learn scipy setuptools starlette sympy tomlkit torch "
    "tornado traitlets transformers trl typer urllib3 uvicorn watchdog "
)
PERMISSIVE = r"MIT|BSD|ISC|Apache|PSF|Python Software Foundation"
#: a part may say what it likes, if the whole package is also under one of these
NOT_PERMISSIVE = r"GPL|MPL|Mozilla|Proprietary"
#: tests, copies of other packages, tables
NOT_SOURCE = {
    *("test", "tests", "testing", "idle_test", "site-packages", "__pycache__", "locale-data"),
    *("_vendor", "vendor", "vendored", "thirdparty", "third_party", "extern", "externals", "_distutils", "typeshed"),
}
#: so that no package outweighs the others
CHARACTERS_OF_A_PACKAGE = 1_000_000


def of_hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def read_library() -> dict[str, list[str]]:
    """The standard library of the running Python, its tests left out. 1 module in 25 is held out, chosen by its name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts: dict[str, list[str]] = {"train": [], "heldout": []}
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root)
        if not NOT_SOURCE.intersection(module.parts):
            split = "heldout" if of_hash(str(module))[0] % 25 == 0 else "train"
            texts[split].append(path.read_text("utf-8", errors="replace"))
    return texts


def licence(package: str) -> str:
    """What the package's metadata say, refused unless it is permissive."""
    fields = importlib.metadata.metadata(package)
    classified = [c.rpartition(" :: ")[2] for c in fields.get_all("Classifier", []) if c.startswith("License")]
    said = fields.get("License-Expression") or " / ".join(classified) or fields.get("License", "")
    if not re.search(PERMISSIVE, said) or re.search(NOT_PERMISSIVE, said):
        raise ValueError(f"{package} is under {said!r}; take it out of PACKAGES")
    return said


def read_package(package: str) -> Iterator[str]:
    """Modules written by hand, in an order that their names' hashes give, up to CHARACTERS_OF_A_PACKAGE."""
    num_characters = 0
    files = importlib.metadata.files(package) or []
    for file in sorted(files, key=lambda file: of_hash(str(file))):
        is_test = re.search(r"^test_|_test\.py$|conftest|_pb2", file.name)
        if file.suffix != ".py" or is_test or NOT_SOURCE.intersection(file.parts):
            continue
        text = Path(str(file.locate())).read_text("utf-8", errors="replace")
        is_generated = re.search(r"(?i)generated by|@generated|auto-?generated|automatically generated", text[:1000])
        is_table = sum(c.isdigit() for c in text) > 0.15 * len(text)
        if is_generated or is_table or not 500 <= len(text) <= 100_000:
            continue
        if num_characters + len(text) <= CHARACTERS_OF_A_PACKAGE:
            num_characters += len(text)
            yield text


def without_copies(texts: list[str], heldout: list[str]) -> list[str]:
    """Each text once, and none of which a tenth of the long lines are also in a text that is held out (backports)."""

    def long_lines(text):
        return {line for line in map(str.strip, text.splitlines()) if len(line) >= 30}

    kept, known = dict.fromkeys(texts), set().union(*map(long_lines, heldout))
    return [text for text in kept if len(long_lines(text) & known) <= 0.1 * len(long_lines(text))]


def train_tokenizer(texts) -> PreTrainedTokenizerFast:
    """Byte-level BPE: any text survives a round trip, and no token is ever unknown."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=4096, special_tokens=[END, PAD], initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        model_max_length=2 * CONTEXT,
        model_input_names=["input_ids", "attention_mask"],
    )


def pack(texts: list[str], tokenizer) -> datasets.Dataset:
    """Modules one after the other, each closed by the end token, cut into blocks of CONTEXT tokens."""
    stream = [t for ids in tokenizer(texts, verbose=False).input_ids for t in [*ids, tokenizer.eos_token_id]]
    cut = [stream[i : i + CONTEXT] for i in range(0, len(stream) - CONTEXT + 1, CONTEXT)]
    return datasets.Dataset.from_dict({"input_ids": cut, "labels": cut})


def prepare(folder: Path, small: bool) -> None:
    """Tokenizer and blocks, kept: packages may be upgraded before training goes on."""
    library = read_library()
    if small:
        library = {"train": library["train"][:30], "heldout": library["heldout"][:1]}
    packages = {} if small else {name: list(read_package(name)) for name in PACKAGES.split()}
    used = [f"{name} {importlib.metadata.version(name)} ({licence(name)})" for name in packages]
    texts = [*library["train"], *without_copies(list(chain(*packages.values())), library["heldout"])]
    random.Random(0).shuffle(texts)
    tokenizer = train_tokenizer(library["train"])
    blocks = {"train": pack(texts, tokenizer), "heldout": pack(library["heldout"], tokenizer)}
    datasets.DatasetDict(blocks).save_to_disk(folder / "blocks")
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / "packages.txt").write_text(", ".join(used), encoding="utf-8")


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for the matrices between the layers (Jordan et al. 2024), AdamW for embeddings and norms, as one optimizer."""

    def __init__(self, model: torch.nn.Module, lr: float):
        parameters = dict(model.named_parameters())
        matrices = [p for name, p in parameters.items() if p.ndim == 2 and "embed" not in name]
        rest = [p for name, p in parameters.items() if p.ndim != 2 or "embed" in name]
        self.muon = torch.optim.Muon(matrices, lr=lr, adjust_lr_fn="match_rms_adamw")
        self.adamw = torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
        super().__init__([*self.muon.param_groups, *self.adamw.param_groups], {})

    def step(self, closure=None):
        for part, groups in ((self.muon, self.param_groups[:1]), (self.adamw, self.param_groups[1:])):
            part.param_groups, part.state = groups, self.state  # new objects after loading a checkpoint
            part.step()


class BitsPerByte(TrainerCallback):
    """Adds held-out bits per byte to each evaluation."""

    def __init__(self, tokenizer, blocks: datasets.Dataset):
        texts = tokenizer.batch_decode([ids[1:] for ids in blocks["input_ids"]])
        self.tokens_per_byte = blocks.num_rows * (CONTEXT - 1) / sum(len(text.encode()) for text in texts)

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        bits = metrics["eval_loss"] / math.log(2) * self.tokens_per_byte
        print(f"step {state.global_step}: {bits:.4f} bits per byte", flush=True)


def train_target(out: Path, steps: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(out / "data" / "tokenizer")
    blocks = datasets.load_from_disk(out / "data" / "blocks")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2 * CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    set_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")  # the quickest here, backwards
    for layer in model.model.layers if steps > 100 else ():
        layer.compile()
    arguments = TrainingArguments(
        output_dir=str(out / "checkpoints"),
        max_steps=steps,
        # The rate stays the same for four fifths: any checkpoint until then can be brought to an end by fewer `steps`.
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": steps // 5},
        warmup_steps=min(100, steps // 5),
        per_device_train_batch_size=16 if steps > 100 else 2,
        bf16=steps > 100,  # slow on a processor without such products
        use_cpu=not torch.cuda.is_available(),
        logging_steps=25,
        eval_strategy="steps",
        eval_steps=250,
        save_steps=50,
        save_total_limit=2,
        report_to=[],
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=blocks["train"],
        eval_dataset=blocks["heldout"],
        callbacks=[BitsPerByte(tokenizer, blocks["heldout"])],
        optimizers=(MuonAndAdamW(model, 4e-3), None),
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(out / "checkpoints") if (out / "checkpoints").exists() else None)
    model.config.use_cache = True  # the Trainer switches it off
    model.half().save_pretrained(out / "target")
    tokenizer.save_pretrained(out / "target")


@torch.no_grad()
def write_texts(out: Path, num_answers: int, num_blocks: int, max_new_tokens: int) -> None:
    """What drafts learn from: the target's answers to beginnings of blocks, and other blocks, which take no decoding."""
    tokenizer = AutoTokenizer.from_pretrained(out / "target")
    target = AutoModelForCausalLM.from_pretrained(out / "target", dtype=torch.float32)
    blocks = datasets.load_from_disk(out / "data" / "blocks")["train"].shuffle(seed=0)[: num_answers + num_blocks]["input_ids"]
    prompts = [ids[:PROMPT] for ids in blocks]
    set_seed(0)
    sampled = {"do_sample": True, "top_k": 0, "max_new_tokens": max_new_tokens}
    completions = hs.generate_batches(target, prompts[:num_answers], batch_size=64, **sampled)
    answers = [completion.new_ids for completion in tqdm(completions, "answers", num_answers)]
    answers += [ids[PROMPT:] for ids in blocks[num_answers:]]
    columns = {
        "prompt": tokenizer.batch_decode(prompts),
        "answer": tokenizer.batch_decode(answers, skip_special_tokens=True),
    }
    datasets.Dataset.from_dict(columns).shuffle(seed=0).to_json(out / "texts.jsonl")


def train_draft(out: Path, name: str, steps: int | None) -> None:
    """By the command; kept in half precision."""
    head, enough, more = DRAFTS[name]
    run = out / "runs" / name
    command = [sys.executable, "-m", "hf_speculative", "train", out / "target", "--head", head]
    settings = ["--steps", steps or enough, "--data", out / "texts.jsonl", "--answers", "answer"]
    settings += ["--max-length", CONTEXT, "--batch-size", 8, "--dtype", "float32", "--output", run, *more]
    settings += ["--resume"] if (run / "answers.jsonl").exists() or (run / "training.json").exists() else []
    if steps is not None:  # a rehearsal, on any processor
        settings = [one for one in settings if one != "--bf16"]
    subprocess.run([str(word) for word in (*command, *settings)], check=True)
    shutil.copytree(run, out / name, ignore=lambda folder, names: set(names) - KEPT)
    config, weights = out / name / "config.json", out / name / "model.safetensors"
    config.write_text(config.read_text().replace('"dtype": "float32"', '"dtype": "float16"'))
    tensors = {key: t.half() if t.is_floating_point() else t for key, t in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})


@torch.no_grad()
def evaluate(target, draft, tokenizer, blocks: datasets.Dataset) -> dict[str, float]:
    """Held-out bits per byte of both models, and the mean over positions of sum(min(p, q)) at temperature 1.

    That sum is the chance that a token drawn from the draft is accepted (Leviathan et al., section 3.1).
    """
    bits = {"target": 0.0, "draft": 0.0}
    acceptance, num_bytes = [], 0
    for row in blocks.with_format("torch"):
        ids = row["input_ids"][None]
        num_bytes += len(tokenizer.decode(ids[0, 1:]).encode())
        log_probs = {}
        for name, model in (("target", target), ("draft", draft)):
            log_probs[name] = model(ids).logits.float().log_softmax(-1)[0, :-1]
            bits[name] -= log_probs[name].gather(1, ids[0, 1:, None]).sum().item() / math.log(2)
        acceptance.append(torch.minimum(log_probs["target"].exp(), log_probs["draft"].exp()).sum(-1).mean())
    return {name: b / num_bytes for name, b in bits.items()} | {"acceptance": torch.stack(acceptance).mean().item()}


CARD = """---
license: other
library_name: transformers
pipeline_tag: text-generation
tags: [speculative-decoding, draft-model]
---

# The embedded models

Tiny models for demonstrations and tests of speculative decoding, which share a byte-level BPE tokenizer of {vocab} tokens: a
Llama-type target of {layers} layers ({target_size:.1f} M parameters), a draft model of 2 layers ({draft_size:.1f} M) and an
EAGLE-3 head. They write text that looks like Python and does nothing useful.

* **Data**: the source of the Python {python} standard library without its tests (PSF licence), and of the packages below, each
  under the licence that its metadata name, without tests, generated files and copies, at most a million characters of each.
  37 modules of the standard library are held out, chosen by a hash of the module's name.
* **Training**: `examples/train_embedded_pair.py`: the target by next-token prediction, contexts of {context} tokens; the draft
  model and the head by `hf-speculative train`, from what the target makes of its own texts and of blocks of the data.
* **Held-out bits per byte**: target {bpb_target:.3f}, draft {bpb_draft:.3f}.
* **Acceptance rate between target and draft model** at temperature 1, on held-out modules (mean of sum(min(p, q)) over
  positions): **{acceptance:.3f}**.
* **Packages**: {packages}.

The weights are stored in half precision and were measured as stored, computed in float32.
"""


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write the stages, the models and their card to.")],
    steps: Annotated[int, typer.Option(help="Of the target.")] = 1400,
    rehearsal: Annotated[bool, typer.Option("--rehearsal", help="Little data, few steps.")] = False,
):
    """Train tokenizer, target, draft model and head into OUT, and write their card."""
    steps, draft_steps = (2, 2) if rehearsal else (steps, None)
    if not (out / "data" / "packages.txt").exists():
        prepare(out / "data", rehearsal)
    if not (out / "target").exists():
        train_target(out, steps)
    if not (out / "texts.jsonl").exists():
        write_texts(out, *((20, 4, 8) if rehearsal else (2060, 5000, 192)))
    for name in DRAFTS:
        if not (out / name).exists():
            train_draft(out, name, draft_steps)
    tokenizer, blocks = AutoTokenizer.from_pretrained(out / "target"), datasets.load_from_disk(out / "data" / "blocks")
    target, draft = (AutoModelForCausalLM.from_pretrained(out / name, dtype=torch.float32) for name in ("target", "draft"))
    scores = evaluate(target, draft, tokenizer, blocks["heldout"])
    card = CARD.format(
        layers=target.config.num_hidden_layers,
        target_size=target.num_parameters() / 1e6,
        draft_size=draft.num_parameters() / 1e6,
        vocab=len(tokenizer),
        python=sysconfig.get_python_version(),
        context=CONTEXT,
        bpb_target=scores["target"],
        bpb_draft=scores["draft"],
        acceptance=scores["acceptance"],
        packages=(out / "data" / "packages.txt").read_text(encoding="utf-8"),
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    typer.echo(card)


if __name__ == "__main__":
    typer.run(main)
