"""Tiny targets with answers of their own, and trainers of drafts for them."""

import torch
from transformers import TrainingArguments

from hf_speculative.distillation.dflash_student import DFlashStudent, new_block
from hf_speculative.distillation.eagle3_student import Eagle3Student, new_head
from hf_speculative.distillation.kinds import DraftStudent
from hf_speculative.distillation.sampling_params import SamplingParams
from hf_speculative.distillation.teacher import Example, Teacher, collated
from hf_speculative.training.acceptance import Meter
from hf_speculative.training.settings import Settings
from hf_speculative.training.trainer import DraftTrainer
from tests.support import tiny

LENGTH = 12


def examples(target, num_examples=8, seed=0, length=LENGTH):
    """Greedy answers of a target to random prompts."""
    ids = tiny.prompts(num_examples, width=5, seed=seed)
    output = target.generate(**ids, max_new_tokens=length, do_sample=False)
    rows = zip(ids["input_ids"], ids["attention_mask"], output[:, 5:], strict=True)
    return [Example(tuple(row[mask.bool()].tolist()), tuple(new.tolist())) for row, mask, new in rows]


def of_many_lengths(target, num_examples=9):
    return [example.cut(6 + 3 * (row % 4)) for row, example in enumerate(examples(target, num_examples))]


def new_student(kind, target, counts=None):
    """A draft model, an EAGLE-3 head or a block, of random weights; heads draft the tokens that are counted most."""
    torch.manual_seed(0)
    counts = torch.arange(tiny.VOCAB) if counts is None else counts
    if kind == "draft model":
        return DraftStudent(tiny.noisy_copy(target, noise=0.8), target)
    if kind == "eagle3":
        return Eagle3Student(new_head(target, counts, 50), target)
    return DFlashStudent(new_block(target, counts, 50, kind, 3), target)


def meter(target, **given):
    prompts = [list(example.prompt_ids) for example in examples(target, 2, seed=7)]
    return Meter(prompts, Settings(**{"max_new_tokens": 8} | given), num_draft_tokens=3)


def trainer(target, draft, folder, data=None, student=None, loss="lk_hybrid", use=None, meter=None, **given):
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False}
    steps = {"max_steps": 4, "learning_rate": 1e-3, "lr_scheduler_type": "constant", "logging_steps": 1}
    rows = {"per_device_train_batch_size": 4, "remove_unused_columns": False, "save_strategy": "no"}
    student, data = student or DraftStudent(draft, target), examples(target) if data is None else data
    own = {"args": TrainingArguments(str(folder), **quiet | steps | rows | given), "data_collator": collated}
    use, meter = use or SamplingParams(), meter or Meter([], Settings())
    return DraftTrainer(student, Teacher(target, student.hidden_layers), loss, use, meter, train_dataset=data, **own)


def weights(module):
    return torch.cat([weight.detach().flatten() for weight in module.parameters()])


def logged(trainer, name="loss"):
    return [entry[name] for entry in trainer.state.log_history if name in entry]
