"""Train the target/draft pair that ships inside hf_speculative, from the Python standard library's own source.

    python examples/train_embedded_pair.py OUT                            # two hours on 2 CPU cores, minutes on a GPU
    python examples/train_embedded_pair.py OUT --minutes 2 --modules 100  # a rehearsal: everything runs, nothing is good

Stages, each a folder under OUT; a stage whose folder exists is skipped, so an interrupted run can be continued:

1. `pretrained`: a byte-level BPE tokenizer, and the target by next-token prediction (12 layers);
2. `distilled`: the draft, begun as the target's first layers and trained on the target's own distributions, for a high
   acceptance;
3. `target` and `draft`: both trained further together, the target on the text and both on agreeing with each other. Models made
   for speculative decoding are trained in this way (LayerSkip, arXiv 2404.16710, does so with its early exits).

It ends with the model card: held-out bits per byte of both, and the acceptance rate between them.
"""

import copy
import hashlib
import math
import sysconfig
import time
from pathlib import Path
from typing import Annotated

import datasets
import torch
import typer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

CONTEXT = 512
AGREEMENT = 3.0  # weight of agreeing with each other, beside predicting the text
END = "<|endoftext|>"
PAD = "<|pad|>"
NOT_SOURCE = {"test", "tests", "idle_test", "site-packages", "__pycache__"}


def read_library(num_modules: int | None = None) -> datasets.DatasetDict:
    """The first `num_modules` (None: all) modules of the running Python's standard library, its tests left out.

    1 in 25 is held out, chosen by its name.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    rows: dict[str, list] = {"train": [], "heldout": []}
    modules = (path.relative_to(root) for path in sorted(root.rglob("*.py")))
    kept = [module for module in modules if not NOT_SOURCE.intersection(module.parts)]
    for module in kept[:num_modules]:
        split = "heldout" if hashlib.sha256(str(module).encode()).digest()[0] % 25 == 0 else "train"
        rows[split].append({"module": str(module), "text": (root / module).read_text("utf-8", errors="replace")})
    return datasets.DatasetDict({split: datasets.Dataset.from_list(part) for split, part in rows.items()})


def train_tokenizer(texts, vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE: any text survives a round trip, and no token is ever unknown."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END, PAD],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        model_max_length=2 * CONTEXT,
        model_input_names=["input_ids", "attention_mask"],
    )


def pack(texts: datasets.Dataset, tokenizer) -> datasets.Dataset:
    """Modules one after the other, each closed by the end token, cut into blocks of CONTEXT tokens."""

    def blocks(batch):
        stream = [t for text in batch["text"] for t in [*tokenizer(text).input_ids, tokenizer.eos_token_id]]
        cut = [stream[i : i + CONTEXT] for i in range(0, len(stream) - CONTEXT + 1, CONTEXT)]
        return {"input_ids": cut, "labels": cut}

    return texts.map(blocks, batched=True, batch_size=256, remove_columns=texts.column_names)


class TimeBudget(TrainerCallback):
    """Stops after so many seconds of training, and paces the learning rate by the same clock."""

    def __init__(self, seconds: float):
        self.seconds, self.start = seconds, time.monotonic()

    def on_train_begin(self, *args, **kwargs):
        self.start = time.monotonic()

    def spent(self) -> float:
        return min(1.0, (time.monotonic() - self.start) / self.seconds)

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= self.spent() >= 1

    def learning_rate_factor(self, step: int) -> float:
        """Linear warm-up over 100 steps, then a cosine over the budget down to 2 %."""
        return min(1.0, (step + 1) / 100) * (0.02 + 0.98 * (1 + math.cos(math.pi * self.spent())) / 2)


def disagreement(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Mean loss of log-probabilities `p` (target) and `q` (draft), `(batch, length, vocab)`.

    It moves from KL(target || draft) to the rejection rate 1 - sum(min(p, q)) as acceptance grows: LK losses
    (arXiv 2602.23881), the hybrid form with w = exp(-3 acceptance).
    """
    acceptance = torch.minimum(p.exp(), q.exp()).sum(-1)
    divergence = (p.exp() * (p - q)).sum(-1)
    weight = torch.exp(-3 * acceptance.detach())
    return (weight * divergence + (1 - weight) * (1 - acceptance)).mean()


class Distillation(Trainer):
    """Trains the draft on the target's whole distribution at each position."""

    def __init__(self, *args, target, **kwargs):
        super().__init__(*args, **kwargs)
        self.target = target

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with torch.no_grad():
            p = self.target(inputs["input_ids"]).logits.float().log_softmax(-1)
        outputs = model(inputs["input_ids"])
        loss = disagreement(p, outputs.logits.float().log_softmax(-1))
        return (loss, outputs) if return_outputs else loss


class Together(Trainer):
    """Trains both: the target to predict the text, and the two to agree. The model is a ModuleList of both."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        target, draft = model
        ids = inputs["input_ids"]
        p, q = (part(ids).logits.float().log_softmax(-1) for part in (target, draft))
        loss = AGREEMENT * disagreement(p, q) + torch.nn.functional.nll_loss(
            p[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        )
        return (loss, None) if return_outputs else loss


def fit(trainer_class, model, data, minutes: float, learning_rate: float, batch_size: int, folder: Path, **kwargs):
    on_gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=10**6,  # the clock stops it, see TimeBudget
        per_device_train_batch_size=batch_size,
        bf16=True,
        use_cpu=not on_gpu,
        max_grad_norm=1.0,
        logging_steps=25,
        save_strategy="no",
        report_to=[],
        dataloader_pin_memory=on_gpu,
        remove_unused_columns=False,
    )
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=learning_rate,
        betas=(0.9, 0.95),
    )
    budget = TimeBudget(60 * minutes)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, budget.learning_rate_factor)
    trainer = trainer_class(
        model=model,
        args=arguments,
        train_dataset=data,
        callbacks=[budget],
        optimizers=(optimizer, schedule),
        **kwargs,
    )
    trainer.train()


def new_target(tokenizer) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2 * CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def new_draft(target: LlamaForCausalLM, num_layers: int) -> LlamaForCausalLM:
    """The target's embeddings, first layers and final norm: a start from which distillation needs few steps."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = num_layers
    config.layer_types = None
    draft = LlamaForCausalLM(config)
    draft.load_state_dict(target.state_dict(), strict=False)
    return draft


@torch.no_grad()
def evaluate(target, draft, tokenizer, blocks: datasets.Dataset) -> dict[str, float]:
    """Held-out bits per byte of both models, and the mean over positions of sum(min(p, q)) at temperature 1.

    That sum is the chance that a token drawn from the draft is accepted (Leviathan et al., section 3.1).
    """
    bits = {"target": 0.0, "draft": 0.0}
    acceptance, num_bytes = [], 0
    for row in blocks.with_format("torch"):
        ids = row["input_ids"][None].to(target.device)
        num_bytes += len(tokenizer.decode(ids[0, 1:]).encode())
        log_probs = {}
        for name, model in (("target", target), ("draft", draft)):
            log_probs[name] = model(ids).logits.float().log_softmax(-1)[0, :-1]
            bits[name] -= log_probs[name].gather(1, ids[0, 1:, None]).sum().item() / math.log(2)
        acceptance.append(torch.minimum(log_probs["target"].exp(), log_probs["draft"].exp()).sum(-1).mean())
    return {name: b / num_bytes for name, b in bits.items()} | {"acceptance": torch.stack(acceptance).mean().item()}


CARD = """---
license: psf-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [speculative-decoding, draft-model]
---

# The embedded pair

Two tiny Llama-type models for demonstrations and tests of speculative decoding: a target of {target_layers} layers
({target_size:.1f} M parameters) and a draft of {draft_layers} ({draft_size:.1f} M), which share a byte-level BPE
tokenizer of {vocab} tokens. They write text that looks like Python and does nothing useful.

* **Data**: the source of the Python {python} standard library without its tests (PSF licence): {train} modules to train
  on, {heldout} held out (chosen by a hash of the module's name).
* **Training**: `examples/train_embedded_pair.py`, contexts of {context} tokens: the target by next-token prediction, the
  draft by distillation on the target's distributions, then both together on agreeing with each other. So the two agree
  more than models that were not made for each other: figures measured with them say how fast the code is at that
  acceptance, not what another pair will accept.
* **Held-out bits per byte**: target {bpb_target:.3f}, draft {bpb_draft:.3f}; the target before it was trained together with
  the draft {bpb_before:.3f}.
* **Acceptance rate between them** at temperature 1, on held-out modules (mean of sum(min(p, q)) over positions):
  **{acceptance:.3f}**.

The weights are stored in half precision and were measured as stored, computed in float32.
"""


def save(model, tokenizer, folder: Path) -> None:
    model.config.use_cache = True  # the Trainer switches it off
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write the stages, the pair and its card to.")],
    minutes: Annotated[
        float, typer.Option(help="Training time: half for the target, a quarter for each later stage.")
    ] = 120,
    modules: Annotated[int | None, typer.Option(help="Train on so many modules only, for a rehearsal.")] = None,
    draft_layers: Annotated[int, typer.Option(help="Layers of the draft.")] = 1,
    vocab_size: Annotated[int, typer.Option(help="Tokens in the vocabulary.")] = 4096,
    seed: int = 0,
):
    """Train tokenizer, target and draft into OUT, and write their card."""
    set_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    library = read_library(modules)

    def load(stage: str) -> LlamaForCausalLM:
        return AutoModelForCausalLM.from_pretrained(out / stage, dtype=torch.float32).to(device)

    if not (out / "pretrained").exists():
        tokenizer = train_tokenizer(library["train"]["text"], vocab_size)
        target = new_target(tokenizer)
        blocks = pack(library["train"].shuffle(seed=seed), tokenizer)
        fit(Trainer, target, blocks, minutes / 2, 2e-3, 4, out)
        save(target, tokenizer, out / "pretrained")
    tokenizer = AutoTokenizer.from_pretrained(out / "pretrained")
    blocks = pack(library["train"].shuffle(seed=seed), tokenizer)
    if not (out / "distilled").exists():
        target = load("pretrained")
        draft = new_draft(target, draft_layers)
        fit(Distillation, draft, blocks, minutes / 4, 2e-3, 4, out, target=target)
        save(draft, tokenizer, out / "distilled")
    if not (out / "draft").exists():
        pair = torch.nn.ModuleList([load("pretrained"), load("distilled")])
        fit(Together, pair, blocks, minutes / 4, 1e-3, 2, out)
        save(pair[0], tokenizer, out / "target")
        save(pair[1], tokenizer, out / "draft")

    target, draft = load("target"), load("draft")
    heldout = pack(library["heldout"], tokenizer)
    before = evaluate(load("pretrained"), draft, tokenizer, heldout)
    scores = evaluate(target, draft, tokenizer, heldout)
    card = CARD.format(
        target_layers=target.config.num_hidden_layers,
        draft_layers=draft.config.num_hidden_layers,
        target_size=target.num_parameters() / 1e6,
        draft_size=draft.num_parameters() / 1e6,
        vocab=len(tokenizer),
        python=sysconfig.get_python_version(),
        train=len(library["train"]),
        heldout=len(library["heldout"]),
        context=CONTEXT,
        bpb_target=scores["target"],
        bpb_draft=scores["draft"],
        bpb_before=before["target"],
        acceptance=scores["acceptance"],
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    typer.echo(card)


if __name__ == "__main__":
    typer.run(main)
