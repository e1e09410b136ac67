"""An EAGLE-3 head that fits its target and needs the states its config names: so that reading others shows.

Its first layer hears nothing of the tokens, only of the target's states. So the head learns, in a few dozen steps, what the
target goes on with after each state of a few texts; from other states it knows little.
"""

from __future__ import annotations

import copy

import torch
from torch.nn.functional import cross_entropy

from hf_speculative.heads.eagle3 import Eagle3Model
from hf_speculative.heads.eagle3_config import Eagle3Config
from tests.support import tied, tiny

#: which of the target's states it reads
LAYERS = [2, 3, 5]
#: new tokens of a text that it is fitted to
NUM_TOKENS = 8
#: how much more the target's layers write than they would, and how much larger the head's states are than after a norm
LOUDNESS, SCALE = 16.0, 16.0


def target():
    """A random target whose layers write much, so that no two of its states are alike."""
    model = tiny.llama(layers=7)
    tied.hush(model.model.layers, LOUDNESS)
    return model


def head_for(model, prompts: list[list[int]], steps: int = 120) -> Eagle3Model:
    """A head that was fitted to the greedy text of the target after each prompt; all prompts have one length."""
    torch.manual_seed(1)
    own = model.config
    layers = {name: getattr(own, name) for name in ("vocab_size", "hidden_size", "num_attention_heads")}
    layers |= {"model_type": "llama", "num_hidden_layers": 1, "num_key_value_heads": 2, "intermediate_size": 64}
    config = Eagle3Config(
        transformer_layer_config=layers | {"max_position_embeddings": 128, "pad_token_id": None},
        draft_vocab_size=own.vocab_size,
        norm_before_residual=False,
        eagle_aux_hidden_state_layer_ids=list(LAYERS),
        has_embed_tokens=False,
    )
    head = Eagle3Model._from_config(config)
    with torch.no_grad():
        head.layers[0].input_layernorm.weight.zero_()
        head.fc.weight.mul_(SCALE / head.fc.weight.std() / head.fc.in_features**0.5)
    ids = torch.tensor(prompts)
    text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False)
    with torch.no_grad():
        states = torch.cat([model(text, output_hidden_states=True).hidden_states[i] for i in LAYERS], -1)
        embeddings = model.get_input_embeddings()(text[:, 1:-1])
    length = text.shape[1] - 2
    causal = torch.full((length, length), -torch.inf).triu(1)[None, None]
    positions = torch.arange(length)[None]

    def loss(step: int):
        own_states = head(embeddings, head.fuse(states[:, :length]), positions, attention_mask=causal)
        return cross_entropy(head.logits(own_states).flatten(0, 1), text[:, 2:].flatten())

    learned = [weight for name, weight in head.named_parameters() if "input_layernorm" not in name]
    tiny.fit(learned, loss, steps, learning_rate=1e-2)
    return head.eval().requires_grad_(False)


def misread(head: Eagle3Model, **fields) -> Eagle3Model:
    """The same weights by a config that says something else."""
    config = copy.deepcopy(head.config)
    for name, value in fields.items():
        setattr(config, name, value)
    other = Eagle3Model._from_config(config)
    other.load_state_dict(head.state_dict())
    return other.eval()
