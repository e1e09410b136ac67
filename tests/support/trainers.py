"""Trainers that evaluate with a draft, on tiny rows."""

import torch
from transformers import Seq2SeqTrainingArguments, Trainer

import hf_speculative as hs
from hf_speculative.integrations.trainer import SpeculativeTrainerMixin
from tests.support import tiny

NUM_ROWS, BATCH = 20, 8
CONSTANT = hs.SpeculativeConfig(num_draft_tokens=4)


class SpeculativeTrainer(SpeculativeTrainerMixin, Trainer): ...


def arguments(folder, cls=Seq2SeqTrainingArguments, **given):
    common = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "per_device_eval_batch_size": BATCH}
    if cls is Seq2SeqTrainingArguments:
        common["predict_with_generate"] = True
    return cls(str(folder), **common | given)


def rows(num_rows=NUM_ROWS, seed=0):
    """Training rows of a decoder-only model: prompt, completion, right padding; labels on the completion alone."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in range(num_rows):
        ids, start, end = torch.randint(1, tiny.VOCAB, (12,), generator=generator), 3 + i % 4, 12 - i % 3
        inside = torch.arange(12)
        mask, labels = (inside < end).long(), ids.masked_fill((inside < start) | (inside >= end), -100)
        found.append({"input_ids": ids * mask, "attention_mask": mask, "labels": labels})
    return found


def checkpointed(model):
    """Gradient checkpointing on, under the name it has by now."""
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    return model
