"""What a target keeps of its states, by column, is what plain decoding computes there."""

import pytest
import torch

import hf_speculative as hs
from hf_speculative import Draft, SpeculativeConfig
from hf_speculative.models import states_unsupported_reason
from tests.architectures.check import build, prompts
from tests.support import tiny

#: the ragged path; on the universal one a recurrence beside attention, one alone, convolutions, ALiBi, images between text,
#: images that set positions in 2-D
TARGETS = dict.fromkeys(("llama", "gemma3_text", "gpt2", "qwen3_next", "mamba2", "lfm2", "bloom"), "causal")
TARGETS |= dict.fromkeys(("llava", "qwen2_vl"), "image-text")
NEW = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}


class Compared(hs.Drafter):
    """Proposes plain decoding's own tokens, some of them wrong, and looks at the target's states in each round."""

    one_hot_proposals = True
    hidden_layers = (0, 1, -1)

    def __init__(self, texts, states):
        self.texts, self.states, self.num_compared = texts, states, 0

    def follow(self, target):
        self.target = target

    def propose(self, batch, num_tokens, schedule, sampler):
        ends = [len(history) - 1 for history in batch.history]
        found = self.target.hidden_states(torch.arange(max(ends)).expand(len(ends), -1))
        for lane, (row, end, pad) in enumerate(zip(batch.rows, ends, batch.host_padding, strict=True)):
            torch.testing.assert_close(found[lane, :end], self.states[row, pad : pad + end], rtol=1e-3, atol=1e-4)
            self.num_compared += end
        drafted = []
        for row, n, most in zip(batch.rows, batch.host_lengths, num_tokens, strict=True):
            guess = self.texts[row, n : n + most].tolist()
            drafted.append([abs(token - ((column + row) % 4 == 0)) for column, token in enumerate(guess, n)])
        return Draft.of(batch, drafted)


def joined(steps):
    """`(batch, columns, layers * hidden)` of what plain `generate` gives, one a step."""
    return torch.cat([torch.cat([step[layer] for layer in Compared.hidden_layers], -1) for step in steps], 1)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", TARGETS)
def test_states_are_those_of_plain_decoding(name, batch_size):
    model = build(TARGETS[name], name)
    inputs = prompts(TARGETS[name], model, batch_size)
    out = model.generate(**inputs, **NEW, return_dict_in_generate=True, output_hidden_states=True)
    drafter = Compared(out.sequences, joined(out.hidden_states))
    config = {"draft_model": drafter, "speculative_config": SpeculativeConfig(num_draft_tokens=4)}
    with hs.record() as stats:
        found = hs.generate(model, **prompts(TARGETS[name], model, batch_size), **NEW, **config)
    assert found.tolist() == out.sequences.tolist() and drafter.num_compared > 40 * batch_size
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens, "the cache went back"


def test_all_states_for_the_caller_as_well():
    """Beside a drafter that reads some of them."""
    model, inputs = build("causal", "qwen3_next"), tiny.prompts(3)
    settings = NEW | {"return_dict_in_generate": True, "output_hidden_states": True}
    expected = model.generate(**inputs, **settings)
    config = {
        "draft_model": Compared(expected.sequences, joined(expected.hidden_states)),
        "speculative_config": SpeculativeConfig(num_draft_tokens=4),
    }
    found = hs.generate(model, **inputs, **settings, **config)
    for ours, theirs in zip(found.hidden_states, expected.hidden_states, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_who_gives_no_states():
    assert states_unsupported_reason(build("seq2seq", "t5")) == "is an encoder-decoder model"
    model = build("causal", "bloom")
    assert states_unsupported_reason(model) is None
    model = build("causal", "bloom")
    model.config.hidden_size *= 2
    assert "of other shapes than" in states_unsupported_reason(model)
