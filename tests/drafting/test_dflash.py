"""Heads of the DFlash family: what they propose, in whatever layout they come, and that what is written stays the target's."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hf_speculative as hs
from hf_speculative.drafting import DynamicTreeDrafter
from hf_speculative.drafting.dflash import DFlash
from hf_speculative.heads import load_head
from hf_speculative.types import Batch
from tests.support import blocks, distributions, heads, tiny
from tests.support.cases import slow_but
from tests.support.compared import compare_drafts
from tests.support.plain import plain as plain_tokens, reproduces_plain, same_as_plain, takes_lanes


class Target:
    """As much of a target as a head reads: embeddings, head, and the states of the fixture's text."""

    dtype = torch.float32

    def __init__(self, expected):
        parts = (expected[f"target_{name}.weight"] for name in ("embed_tokens", "lm_head"))
        self.embed, self.head = (nn.Linear(*weight.shape[::-1], bias=False) for weight in parts)
        self.embed = nn.Embedding.from_pretrained(expected["target_embed_tokens.weight"])
        self.head.weight.data = expected["target_lm_head.weight"]
        self.context = expected["context_hidden"]

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.head

    def hidden_states(self, positions):
        return self.context[0][positions]


@torch.no_grad()
@pytest.mark.parametrize("name", ["dflash_zlab", "dflash_jetspec_causal", "dflash2_zlab"])
def test_the_original_implementations_outputs(name):
    """States and logits of both rounds of each fixture, in one batch of unequal rows; DFlash 2's greedy selection."""
    expected = load_file(heads.FIXTURES / name / "expected.safetensors")
    target = Target(expected)
    drafter = DFlash(load_head(heads.FIXTURES / name), target)
    drafter.follow(target)
    ends, blocks_ids = (6, 9), [expected[f"round{i}_block_ids"][0] for i in range(2)]
    rows = [[1] * end + [ids[0].item()] for end, ids in zip(ends, blocks_ids, strict=True)]
    batch = Batch(torch.tensor([[0] * 3 + rows[0], rows[1]]), [3, 0], 40)
    drafter.begin(batch, None)
    for _ in range(2):  # the second time, nothing is left to read of either row
        scores = drafter.step(batch, 0)
        for row in range(2):
            torch.testing.assert_close(drafter.hidden[row], expected[f"round{row}_hidden"][0, 1:], rtol=0, atol=1e-5)
            torch.testing.assert_close(drafter.logits[row], expected[f"round{row}_logits"][0], rtol=0, atol=1e-5)
    if "round0_greedy_tokens" not in expected:
        return
    for ahead in range(5):
        scores = scores if ahead == 0 else drafter.step(batch, ahead)
        tokens = scores.argmax(-1)
        batch.put(tokens[:, None], ahead)
        for row in range(2):
            assert tokens[row] == expected[f"round{row}_greedy_tokens"][0, ahead]


@pytest.fixture(scope="module")
def trained():
    return blocks.pairs()


@pytest.fixture(scope="module")
def target(trained):
    return trained[False][0]


@pytest.fixture(scope="module")
def folders(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("heads")
    for kind in blocks.KINDS:
        blocks.write(kind, path / kind, *trained[blocks.from_anchor(kind)])
    return path


@torch.no_grad()
@pytest.mark.parametrize("kind", slow_but(blocks.KINDS, *[*blocks.KINDS][::2]))
def test_proposals_are_those_of_a_plain_computation(kind, folders, target, monkeypatch):
    """After every round, in every row, whoever has left; each token after those drafted before it."""
    plain = blocks.Plain(folders / kind, target)

    def fresh(drafter, row, text, drafted):
        hidden = target(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
        context = torch.cat([hidden[layer + 1][0] for layer in plain.layer_ids], -1)
        expected = plain.logits(context, text[-1], drafted)
        if hasattr(drafter.model, "confidence_head"):
            before = torch.tensor([[text[-1], *drafted]])[:, : len(expected)]
            found = drafter.model.confidence(drafter.hidden[row : row + 1, : before.shape[1]], before)[0]
            sure = plain.confidences(context, text[-1], drafted)[: before.shape[1]]
            torch.testing.assert_close(found, sure, rtol=1e-4, atol=1e-4)
        return expected

    compared = compare_drafts(monkeypatch, DFlash, fresh)
    inputs = tiny.prompts(4)
    eos = plain_tokens(target, inputs)[2, 11].item()  # rows end at different times
    settings = {"max_new_tokens": 16, "eos_token_id": eos}
    assert 0 < same_as_plain(target, inputs, settings, draft_model=str(folders / kind)).draft_acceptance_rate < 1
    assert len(compared) > 5 and max(compared) == blocks.BLOCK - 1


@pytest.mark.parametrize("kind", ["DSpark", "DSpark, rnn"])
def test_a_confidence_head_ends_drafts(kind, folders, target, monkeypatch):
    """Each row's draft ends before the first place whose estimate, computed plainly, is below the threshold."""
    plain, head = blocks.Plain(folders / kind, target), load_head(folders / kind)
    threshold, lengths, original = 0.5, [], DFlash.propose

    @torch.no_grad()
    def propose(self, batch, num_tokens, *args):
        draft = original(self, batch, num_tokens, *args)
        for row, history in enumerate(batch.history):
            hidden = target(torch.tensor([history[:-1]]), output_hidden_states=True).hidden_states
            context = torch.cat([hidden[layer + 1][0] for layer in plain.layer_ids], -1)
            sure = plain.confidences(context, history[-1], draft.tokens[row].tolist()).sigmoid() >= threshold
            expected = min(num_tokens[row], sure.int().cumprod(0).sum().item())
            assert draft.num_tokens[row] == expected
            lengths.append(expected)
        return draft

    monkeypatch.setattr(DFlash, "propose", propose)
    options = {"draft_model": head, "num_draft_tokens": 4, "assistant_confidence_threshold": threshold}
    assert same_as_plain(target, tiny.prompts(1), **options).num_draft_tokens > 0
    reproduces_plain(target, (1, 4), **options)
    assert {0, 2} < {*lengths}


@pytest.mark.parametrize("kind", slow_but(["DFlash 2", "DSpark, rnn", "JetSpec", "DSpark, gated"], "DFlash 2", "DSpark, rnn"))
def test_trees_of_a_block(kind, folders, target, monkeypatch):
    """Levels come from the block, corrected by what is on the way to each node."""
    head = load_head(folders / kind)
    plain, seen, original = blocks.Plain(folders / kind, target), [], DFlash.level

    def level(self, batch, num_nodes, width):
        logits = original(self, batch, num_nodes, width)
        for row, history in enumerate(batch.history):
            nodes = batch.tokens[row, batch.lengths[row] :].tolist()
            parents = batch.tree.parents[row].tolist()
            hidden = target(torch.tensor([history[:-1]]), output_hidden_states=True).hidden_states
            context = torch.cat([hidden[layer + 1][0] for layer in plain.layer_ids], -1)
            for i in range(width):
                node, path = num_nodes - width + i, []
                while node >= 0:
                    path, node = [nodes[node], *path], parents[node]
                expected = plain.logits(context, history[-1], path)[len(path)]
                torch.testing.assert_close(logits[row, i], expected, rtol=1e-4, atol=1e-4)
                seen.append(len(path))
        return logits

    config = {"draft_model": DynamicTreeDrafter(DFlash(head, target), top_k=2, depth=3), "num_draft_tokens": 5}
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(DFlash, "level", level)
        same_as_plain(target, tiny.prompts(3), {"max_new_tokens": 8}, **config)
    assert max(seen) == 2
    config = {"draft_model": DynamicTreeDrafter(DFlash(head, target), top_k=3, depth=4), "num_draft_tokens": 6}
    assert same_as_plain(target, tiny.prompts(4), **config).draft_acceptance_rate > 0.05


@pytest.fixture(scope="module")
def small():
    """For the exact distribution: a target of a few tokens, and drafts for it."""
    return blocks.pairs(steps=30, vocab_size=distributions.VOCAB)


FEW = [("speculators, reduced", "temperature and top_k"), ("DFlash 2", "top_p"), ("DSpark, rnn", "repetition penalty")]


@pytest.mark.parametrize(("kind", "settings"), [*FEW, pytest.param("DSpark, gated", "a stop", marks=pytest.mark.slow)])
def test_sampling_has_the_distribution(kind, settings, small, tmp_path):
    """With proposals from what a selector leaves, a Markov head makes of it, or a part of the vocabulary holds."""
    target, draft = small[blocks.from_anchor(kind)]
    blocks.write(kind, tmp_path / "head", target, draft, num_ids=4)
    head = load_head(tmp_path / "head")
    distributions.assert_exact(target, {"draft_model": head, "num_draft_tokens": 2}, **distributions.SETTINGS[settings])


def test_a_confidence_head_keeps_the_distribution(small, tmp_path):
    """It reads what was drawn before, and drafts end at different places."""
    blocks.write("DSpark", tmp_path, *small[True], num_ids=4)
    options = {"draft_model": load_head(tmp_path), "num_draft_tokens": 2, "assistant_confidence_threshold": 0.5}
    with hs.record() as statistics:
        distributions.assert_exact(small[True][0], options, **distributions.SETTINGS["temperature and top_k"])
    assert 0.1 < statistics.num_draft_tokens / statistics.num_spec_steps < 1.3, "of 2"


@pytest.mark.parametrize("kind", ["z-lab, causal windows", "DSpark, rnn"])
def test_refill(kind, folders, target):
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(1, tiny.VOCAB, (n,), generator=generator).tolist() for n in (3, 9, 1, 14, 5, 7)]
    assert takes_lanes(target, prompts, batch_size=2, draft_model=load_head(folders / kind)).num_accepted_draft_tokens
