"""Generating inside a training loop: weights change between calls, in training mode, under gradient checkpointing."""

import copy

import pytest
import torch

import hf_speculative as hs
from hf_speculative.distillation.dflash_student import new_block
from hf_speculative.distillation.eagle3_student import new_head
from tests.architectures.check import build, prompts
from tests.support import tiny
from tests.support.trainers import checkpointed

NEW = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def made(name):
    """A model without dropout, in whose training mode greedy decoding can be compared."""
    if name == "llama":
        model = tiny.llama()
        return model, tiny.prompts(3)
    model = build("seq2seq", name)
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = 0
    for module in model.modules():
        for attribute in ("dropout", "attention_dropout", "activation_dropout", "p"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.0)
    return model, prompts("seq2seq", model, 3)


def loss_of(model, ids):
    kwargs = {"input_ids": ids[:, :4]} if model.config.is_encoder_decoder else {"input_ids": ids}
    return model(**kwargs, labels=ids).loss


@pytest.mark.parametrize("name", ["llama", "t5", "bart"])
def test_generating_between_training_steps(name):
    """In each step what plain decoding of an untouched copy writes; the modes stay, gradients are those without generating."""
    model, inputs = made(name)
    draft = tiny.noisy_copy(model, 0.05)
    hs.attach(checkpointed(model).train(), draft.train())
    twin = checkpointed(copy.deepcopy(hs.detach(copy.deepcopy(model)))).train()
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.02) for each in (model, twin)]
    modes = [module.training for module in model.modules()]
    texts = []
    for _ in range(3):
        with hs.record() as stats:
            texts.append(model.generate(**inputs, **NEW, num_draft_tokens=4).tolist())
        assert texts[-1] == copy.deepcopy(twin).eval().generate(**inputs, **NEW).tolist()
        assert stats.num_draft_tokens > 0 and [module.training for module in model.modules()] == modes
        assert draft.training
        for each, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(each, inputs["input_ids"]).backward()
            optimizer.step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert texts[0] != texts[2], "training moved the model"


#: who drafts beside a model; a head reads the target's states and embeddings, which training moves
DRAFTS = {"suffix": {"draft_model": "suffix"}, "first layer": {"assistant_early_exit": 1}, "EAGLE-3": {}, "DFlash": {}}


@pytest.mark.parametrize("name", DRAFTS)
def test_rollouts_of_whatever_drafts_follow_the_weights(name):
    """As in GRPO: each step samples from the model as it is then, seed for seed, and the same gradients move it."""
    model, inputs = tiny.llama(), tiny.prompts(2)
    counts = torch.ones(tiny.VOCAB)
    heads = {"EAGLE-3": new_head, "DFlash": new_block}
    draft = {"draft_model": heads[name](model, counts, tiny.VOCAB)} if name in heads else DRAFTS[name]
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (model, twin)]
    sampled = NEW | {"do_sample": True, "top_k": 0, "max_new_tokens": 8}
    drafted = 0
    for step in range(3):
        texts = []
        for each, optimizer in zip((model, twin), optimizers, strict=True):
            torch.manual_seed(step)
            with hs.record() as stats:
                if each is model:
                    texts.append(hs.generate(model, **inputs, **sampled, **draft, reproducible=True))
                else:
                    texts.append(twin.generate(**inputs, **sampled))
            drafted += stats.num_draft_tokens
            rewards = (texts[-1][:, 5:] % 2).float().mean(1)  # something that depends on the text
            log_probs = each(texts[-1]).logits.log_softmax(-1)[:, 4:-1].gather(-1, texts[-1][:, 5:, None])[..., 0]
            optimizer.zero_grad()
            (-(rewards - rewards.mean())[:, None] * log_probs).mean().backward()
            optimizer.step()
        assert texts[0].tolist() == texts[1].tolist(), step
    assert drafted > 0
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_weights_that_are_replaced():
    model, inputs = made("llama")
    other = tiny.llama(seed=7)
    hs.attach(model, tiny.noisy_copy(model))
    model.generate(**inputs, **NEW)
    model.load_state_dict(other.state_dict())
    assert model.generate(**inputs, **NEW).tolist() == other.generate(**inputs, **NEW).tolist()
    third = tiny.llama(seed=8)
    for mine, theirs in zip(model.parameters(), third.parameters(), strict=True):
        mine.data = theirs.data.clone()
    assert model.generate(**inputs, **NEW).tolist() == third.generate(**inputs, **NEW).tolist()
