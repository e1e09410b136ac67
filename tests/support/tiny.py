"""Models built in memory for the tests: tiny, seeded, and with drafts that partly agree with their target."""

import copy
from contextlib import contextmanager

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 61
COMMON = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
COMMON |= {"tie_word_embeddings": False}
SMALL = COMMON | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128}
GATED = SMALL | {"intermediate_size": 64, "num_key_value_heads": 2}

#: what logits in half precision may differ by, in their standard deviations
ROUNDING = 0.05

#: one config per attention layout: rotary, learned, partial and ALiBi-free; grouped queries; sliding windows; experts
ARCHITECTURES = {
    **dict.fromkeys(("llama", "qwen2", "cohere", "granite", "olmo2", "stablelm", "starcoder2"), GATED),
    **dict.fromkeys(("mistral", "phi3"), GATED | {"sliding_window": 8}),
    **dict.fromkeys(("qwen3", "gemma"), GATED | {"head_dim": 8}),
    "gemma3_text": GATED | {"head_dim": 8, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": COMMON | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    **dict.fromkeys(("gpt_neox", "phi"), SMALL | {"intermediate_size": 64}),
    "opt": SMALL | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "mixtral": GATED | {"num_local_experts": 4, "num_experts_per_tok": 2},
}


def build(model_type: str, seed: int = 0, attention: str = "sdpa", **overrides):
    """A random model of a type, its logits spread so that greedy decoding does not sit on ties."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **(ARCHITECTURES.get(model_type, {}) | overrides))
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    return _spread(model)


def llama(seed: int = 0, vocab_size: int = VOCAB, layers: int = 2, hidden: int = 32, positions: int = 128):
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "max_position_embeddings": positions}
    return build("llama", seed, vocab_size=vocab_size, **sizes)


@torch.no_grad()
def _spread(model):
    # Freshly initialised, all logits are nearly equal and every continuation a tie.
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            weight.mul_(4.0 if "embed" in name or "wte" in name or "head" in name else 2.0)
    return model


@torch.no_grad()
def noisy_copy(model, noise: float = 0.15, seed: int = 1):
    """A draft that agrees with its target about some tokens: unrelated models accept nothing and test nothing."""
    generator = torch.Generator().manual_seed(seed)
    draft = copy.deepcopy(model)
    for weight in draft.parameters():
        if weight.ndim > 1:
            weight.add_(torch.randn(weight.shape, generator=generator) * noise * weight.std())
    return draft


@torch.enable_grad()
def fit(parameters, loss, steps: int, learning_rate: float) -> None:
    """Steps of Adam on `loss(step)`."""
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    for step in range(steps):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()


def prompts(batch_size: int, width: int = 7, seed: int = 0, vocab_size: int = VOCAB) -> dict[str, torch.Tensor]:
    """Left-padded random prompts of unequal length (a batch of one has no padding)."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocab_size, (batch_size, width), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, batch_size):
        mask[row, : (2 * row) % width] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def unpadded(inputs: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    """One row of a batch as a prompt of its own."""
    keep = inputs["attention_mask"][row].bool()
    ids = inputs["input_ids"][row, keep][None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def texts(num: int, width: int = 12, seed: int = 0) -> list[list[int]]:
    """Prompts of unequal length as lists of ids."""
    inputs = prompts(num, width, seed)
    return [unpadded(inputs, row)["input_ids"][0].tolist() for row in range(num)]


def num_equal_tokens(model, inputs: dict[str, torch.Tensor], found: torch.Tensor, **settings) -> int:
    """How many tokens of `found` are those of plain greedy decoding in half precision.

    Rows may part only where plain decoding's two best logits lie as close as rounding; what comes after is another text.
    """
    plain = model.generate(**inputs, **settings, do_sample=False, return_dict_in_generate=True, output_logits=True)
    logits = torch.stack(plain.logits, 1).float()
    lead = logits.topk(2).values.diff(dim=-1)[..., 0].abs() / logits.std()
    assert found.shape == plain.sequences.shape
    num_equal = 0
    for row, same in enumerate((found == plain.sequences)[:, -logits.shape[1] :].tolist()):
        length = (*same, False).index(False)
        assert all(same) or lead[row, length] < ROUNDING, f"row {row}, token {length}: {lead[row, length]:.3f} ahead"
        num_equal += length
    return num_equal


class CountForwards:
    """Context manager: the query lengths of a model's forwards while it is open."""

    def __init__(self, model):
        self.model, self.lengths = model, []

    def __enter__(self):
        def note(module, args, kwargs):
            self.lengths.append(tuple(kwargs["input_ids"].shape) if "input_ids" in kwargs else None)

        self.hook = self.model.register_forward_pre_hook(note, with_kwargs=True)
        return self

    def __exit__(self, *exception):
        self.hook.remove()


@contextmanager
def refused(model, message: str, error=ValueError):
    """What is inside raises an `error` of this message before the first forward of the model."""
    with CountForwards(model) as forwards, pytest.raises(error, match=message) as caught:
        yield caught
    assert not forwards.lengths, "refused before the first forward"
