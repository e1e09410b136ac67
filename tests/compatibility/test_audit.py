"""Why two texts differ: ties are called ties, and planted bugs are found and named."""

import pytest
import torch

import hf_speculative as hs
from hf_speculative.models.ragged_cache import RaggedLayer
from hf_speculative.models.static import RaggedModel
from tests.support import tiny

PROMPT = list(range(3, 20))


def best_two(model, prompt=PROMPT):
    return model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, -1].topk(2).indices.tolist()


def tied(seed):
    """A model whose two best tokens after the prompt are, but for rounding, one."""
    model = tiny.llama(seed=seed).to(torch.bfloat16)
    first, second = best_two(model)
    with torch.no_grad():
        model.lm_head.weight[second] = model.lm_head.weight[first]
        model.lm_head.weight[second, 0] *= 1 + 2**-8  # one unit in the last place of one weight
    return model, first, second


@pytest.mark.parametrize("seed", range(20))
def test_ties(seed):
    model, first, second = tied(seed)
    found = hs.audit(model, PROMPT, [first, 5], [second, 5])
    assert found.is_tie and "a tie within rounding" in str(found) and found.tokens == (first, second)


def test_a_token_that_rounding_cannot_have_chosen():
    model = tiny.llama().to(torch.bfloat16)
    first, _ = best_two(model)
    found = hs.audit(model, PROMPT, [first], [model(input_ids=torch.tensor([PROMPT])).logits[0, -1].argmin().item()])
    assert not found.is_tie and found.layer is None and "compare prompts" in str(found)


def test_a_mask_that_is_off_by_one_in_one_layer(monkeypatch):
    model, update = tiny.llama(layers=3), RaggedLayer.update

    def off_by_one(self, *args, **kwargs):
        keys, values = update(self, *args, **kwargs)
        is_planted = self is self.cache.layers[1] and self.cache.start  # not of the prompt
        return (keys.roll(1, 2), values.roll(1, 2)) if is_planted else (keys, values)

    monkeypatch.setattr(RaggedLayer, "update", off_by_one)
    first, second = best_two(model)
    found = hs.audit(model, PROMPT, [first], [second])
    assert found.layer == "model.layers.1" and "a bug" in str(found) and not found.is_tie


def test_positions_that_are_shifted(monkeypatch):
    model, run = tiny.llama(layers=3), RaggedModel.run

    def shifted(self, position_ids=None, **inputs):
        moved = None if position_ids is None else position_ids + (self.cache.start > 0)
        return run(self, position_ids=moved, **inputs)

    monkeypatch.setattr(RaggedModel, "run", shifted)
    first, second = best_two(model)
    assert hs.audit(model, PROMPT, [first], [second]).layer == "model.layers.0"


def test_equal_texts_and_bad_input():
    model = tiny.llama()
    assert hs.audit(model, PROMPT, [4, 5], [4, 5, 6]) is None
    with pytest.raises(ValueError, match="`prompt` is empty"):
        hs.audit(model, [], [1], [2])
    with pytest.raises(ValueError, match="id 61 is past the 61"):
        hs.audit(model, PROMPT, [61], [2])
