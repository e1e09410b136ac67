"""EAGLE-3 heads draft: what the original code drafts, what fresh passes give after every round, and exactly."""

import pytest
import torch
from torch.nn.functional import embedding
from transformers import DynamicCache

import hf_speculative as hs
from hf_speculative.drafting import DynamicTreeDrafter
from hf_speculative.drafting.eagle3 import Eagle3, PEagle
from hf_speculative.heads import load_head
from hf_speculative.interfaces import CachedModel
from hf_speculative.models.loading import check_name
from hf_speculative.sampling import samplers
from hf_speculative.sampling.logits_processors import Processors
from hf_speculative.schedules import Constant
from hf_speculative.tokenizers.loading import tokenizer_of_draft
from hf_speculative.types import Batch
from hf_speculative.verification import BlockVerification
from tests.support import distributions, heads, tiny, trees
from tests.support.cases import slow_but
from tests.support.compared import compared
from tests.support.plain import reproduces_plain, same_as_plain, takes_lanes

CLOSE = {"rtol": 0, "atol": 1e-5}


class Recorded(CachedModel):
    """A target of which nothing but its states is known, by row."""

    def __init__(self, states):
        self.states = states

    def hidden_states(self, positions):
        return self.states.gather(1, positions[..., None].expand(-1, -1, self.states.shape[2]))


class WithEmbeddings:
    """And its embeddings."""

    def __init__(self, weight):
        self.embeddings = torch.nn.Embedding.from_pretrained(weight)
        self.config = tiny.llama(layers=8).config

    def get_input_embeddings(self):
        return self.embeddings


def drafting(name, texts, states, embeddings):
    """The head of a fixture after `texts`, rows of unequal length, and their batch."""
    drafter = Eagle3(load_head(heads.FIXTURES / name), WithEmbeddings(embeddings))
    width = max(map(len, texts))
    padding = [width - len(text) for text in texts]
    ids = torch.tensor([[0] * pad + text for pad, text in zip(padding, texts, strict=True)])
    batch = Batch(ids, padding, 40)
    sampler = samplers.Greedy(Processors([], 1), len(embeddings)) if len(texts) == 1 else None
    drafter.follow(Recorded(states.expand(len(texts), -1, -1)))
    drafter.begin(batch, sampler)
    return drafter, batch, sampler


def of_draft(drafter, logits):
    """The logits of the draft vocabulary; all others are none."""
    ids = torch.arange(len(drafter.model.d2t)) + drafter.model.d2t
    assert logits.isfinite().sum(-1).eq(len(ids)).all()
    return logits[:, ids]


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in heads.EAGLE3 if "speculators" in name])
def test_steps_are_those_of_speculators(name):
    expected = heads.expected_of(name)
    text = [0, *expected["shifted_tokens"][0].tolist()]
    rows = range(len(text) - 3)
    texts = [text[: i + 2] for i in rows]
    drafter, batch, _ = drafting(name, texts, expected["aux_hidden"], expected["verifier_embed_tokens.weight"])
    for ahead in range(3):
        found = of_draft(drafter, drafter.step(batch, ahead))
        torch.testing.assert_close(found, expected[f"ttt{ahead}_logits"][: len(rows)], **CLOSE)
        batch.put(torch.tensor([[[*text, 0][i + 2 + ahead]] for i in rows]), ahead)


@torch.no_grad()
def test_the_chain_is_eagles():
    expected = heads.expected_of("eagle3_safeailab")
    text = expected["tokens"][0].tolist()
    states, embeddings = expected["aux_hidden"], expected["target_embed_tokens.weight"]
    for num in range(2, len(text) + 1):
        drafter, batch, _ = drafting("eagle3_safeailab", [text[:num]], states, embeddings)
        found = of_draft(drafter, drafter.step(batch, 0))
        torch.testing.assert_close(found[0], expected["prefill_logits"][num - 2], **CLOSE)
    drafter, batch, _ = drafting("eagle3_safeailab", [text], states, embeddings)
    drafted = []
    for ahead in range(4):
        logits = drafter.step(batch, ahead)
        torch.testing.assert_close(of_draft(drafter, logits)[0], expected["chain_logits"][ahead], **CLOSE)
        drafted.append(logits.argmax(-1).item())
        batch.put(logits.argmax(-1, keepdim=True), ahead)
    assert drafted[:3] == expected["chain_target_tokens"].tolist()


@torch.no_grad()
def test_the_tree_is_eagles(monkeypatch):
    monkeypatch.setattr(samplers, "SHARPNESS", 1.0)  # EAGLE's
    expected = heads.expected_of("eagle3_safeailab")
    text, states = expected["tokens"][0].tolist(), expected["aux_hidden"]
    drafter, batch, sampler = drafting("eagle3_safeailab", [text], states, expected["target_embed_tokens.weight"])
    beams = DynamicTreeDrafter(drafter, top_k=3, depth=4)  # its depth is that of what is expanded
    beams.may_branch = True
    draft = beams.propose(batch, [15], Constant(15), sampler)
    found = {tuple(path) for path in trees.paths_of(draft.tokens[0].tolist(), draft.parents[0].tolist())}
    tokens, mask = expected["tree_tokens"][0], expected["tree_mask"][0, 0].bool()
    assert found == {tuple(tokens[row][1:].tolist()) for row in mask[1:]}
    assert draft.tree.depths[0, 1:].sort().values.tolist() == expected["tree_position_ids"][1:].sort().values.tolist()


def masks_of(head, visible):
    """By layer type, of `visible (n, slots)`, slots in order."""
    layers = head.config.transformer_layer_config
    kinds = getattr(layers, "layer_types", None)
    if kinds is None:
        return visible[None, None]
    (num, slots), window = visible.shape, layers.sliding_window
    near = torch.ones(num, slots).triu(slots - num - window + 1).bool() if window else True
    return {kind: (visible & near if kind == "sliding_attention" else visible)[None, None] for kind in kinds}


@torch.no_grad()
def fresh(target, head, text, path):
    """Logits after `text` and draft tokens, without any cache of ours."""
    ids = torch.tensor([text])
    hidden = target(ids[:, :-1], output_hidden_states=True).hidden_states
    states = head.fuse(torch.cat([hidden[layer] for layer in head.config.layers_read(target.config.num_hidden_layers)], -1))
    weight = (head.embed_tokens or target.get_input_embeddings()).weight
    tokens, num = ids[:, 1:], len(text) - 1
    if head.config.is_parallel:
        states = torch.cat([states, head.fuse(head.mask_hidden).expand(-1, len(path), -1)], 1)
        tokens = torch.cat([tokens, torch.full((1, len(path)), head.config.mask_token_id)], 1)
        num += len(path)
    cache = DynamicCache()
    mask = torch.ones(num, num).tril().bool()
    own = head(embedding(tokens, weight), states, torch.arange(num)[None], masks_of(head, mask), cache)
    for i, token in enumerate([] if head.config.is_parallel else path):
        end = num + i + 1
        mask = torch.ones(1, end).bool()
        embedded = embedding(torch.tensor([[token]]), weight)
        own = head(embedded, own[:, -1:], torch.tensor([[end - 1]]), masks_of(head, mask), cache)
    return head.over_target(head.logits(own[:, -1:]))[0, 0]


@pytest.mark.parametrize("name", slow_but(heads.KINDS, *{*heads.KINDS} - {"eagle 3.1", "narrow", "parallel", "llama"}))
def test_proposals_equal_those_of_fresh_passes(name):
    """Chains and trees: after every round, in unequal rows that end one by one, past windows of 4 and 8."""
    target, head = heads.made(name)
    kind = PEagle if head.config.is_parallel else Eagle3
    drafter = compared(kind, lambda text, path: fresh(target, head, text, path))(head, target)
    for own, num_tokens in ((drafter, 3), (DynamicTreeDrafter(drafter, 2, depth=3), 5)):
        same_as_plain(target, tiny.prompts(3), draft_model=own, num_draft_tokens=num_tokens)
    assert drafter.num_steps > 20 and drafter.num_levels > 10


@pytest.mark.parametrize(
    "name, attention", [*((name, "sdpa") for name in heads.KINDS), ("sliding windows", "eager"), ("parallel", "eager")]
)
def test_generate(name, attention):
    target, head = heads.made(name, attention)
    settings = {"draft_model": head, "num_draft_tokens": 3}
    stats = same_as_plain(target, tiny.prompts(4), **settings)
    assert stats.num_draft_tokens > 0 and (name == "narrow" or stats.num_accepted_draft_tokens > 0)
    if attention == "sdpa":
        reproduces_plain(target, (1, 3), **settings | {"settings": {"max_new_tokens": 8}})


@pytest.mark.parametrize("name", heads.EAGLE3)
def test_fixtures_by_name(name):
    folder, expected = heads.FIXTURES / name, heads.expected_of(name)
    weight = expected.get("verifier_embed_tokens.weight", expected.get("target_embed_tokens.weight"))
    target = heads.target_for(weight)
    assert same_as_plain(target, tiny.prompts(2), draft_model=str(folder), num_draft_tokens=3).num_draft_tokens > 50


@pytest.mark.parametrize("name", ["reduced vocabulary", "parallel, reduced"])
def test_sampled_drafts_leave_the_distribution_as_it_is(name):
    """Proposals over a part of the vocabulary, which have no chance anywhere else."""
    _, fields = heads.KINDS[name]
    target = heads.target("llama", vocab_size=distributions.VOCAB)
    head = heads.eagle3(target, **fields | {"draft_vocab": 5})
    config = hs.SpeculativeConfig(rule=BlockVerification(), num_draft_tokens=2)
    distributions.assert_exact(target, {"draft_model": head, "speculative_config": config}, top_k=3)


@pytest.mark.parametrize("name", ["sliding windows", "parallel"])
def test_rows_that_wait_take_lanes(name):
    target, head = heads.made(name)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(1, tiny.VOCAB, (n,), generator=generator).tolist() for n in (3, 9, 1, 4, 7, 1, 3, 8)]
    prompts += [prompts[1][:n] + prompts[n] for n in (5, 7)]  # whose beginning is there already
    kind = PEagle if head.config.is_parallel else Eagle3
    drafter = compared(kind, lambda text, path: fresh(target, head, text, path))(head, target)
    drafter.limit = lambda batch, nums: [n if min(map(len, batch.history)) > 1 else 0 for n in kind_limit(batch, nums)]
    kind_limit = type(drafter).limit.__get__(drafter)  # an admitted token alone has no state to compare with
    takes_lanes(target, prompts, draft_model=drafter, num_draft_tokens=3)
    assert drafter.num_steps > 10
    takes_lanes(target, prompts, draft_model=head, num_draft_tokens=3)


def test_heads_that_do_not_belong_to_the_target():
    target, head = heads.made("llama")
    for other, message in (
        (heads.target("llama", hidden_size=16), "made for a target of hidden size 32 with 2 layers or more"),
        (heads.target("llama", num_hidden_layers=1), "with 2 layers or more"),
        (heads.target("llama", vocab_size=90), "made for a vocabulary of 61 entries and the target has 90"),
    ):
        assert message in hs.check(other, head).reason
        with pytest.raises(ValueError, match=message):
            hs.generate(other, **tiny.prompts(1), draft_model=head)
    narrow = heads.eagle3(heads.target("llama"), hidden=16)
    narrow.embed_tokens, narrow.config.has_embed_tokens = None, False
    with pytest.raises(ValueError, match="no embeddings of its own"):
        hs.generate(target, **tiny.prompts(1), draft_model=narrow)


def test_a_head_of_another_type_and_its_configs(tmp_path):
    """By name it takes the target's type; neither config is changed, and what lies beside it is no tokenizer."""
    target, head = heads.made("llama")
    head.to(torch.bfloat16).save_pretrained(tmp_path)
    check_name(tmp_path)
    assert tokenizer_of_draft(str(tmp_path), None) is None
    before = target.config.to_dict(), head.config.to_dict()
    same_as_plain(target, tiny.prompts(2), draft_model=head, num_draft_tokens=2)
    same_as_plain(target, tiny.prompts(2), draft_model=str(tmp_path), num_draft_tokens=2)
    assert (target.config.to_dict(), head.config.to_dict()) == before and hs.check(target, head)
