"""A draft with another tokenizer, through `generate`: exact, batched, and really accepted."""

import copy

import pytest
import torch
from transformers import StoppingCriteria

import hf_speculative as hs
from hf_speculative.drafting import draft_model
from hf_speculative.drafting.model_drafter import StringMatch, TokenIntersection
from hf_speculative.models import RaggedModel
from hf_speculative.tokenizers.alignment import Translation
from tests.architectures import check as architectures
from tests.support import tiny, tongues
from tests.support.cases import a_third, slow_but
from tests.support.distributions import SETTINGS, VOCAB, assert_exact
from tests.support.plain import agrees

TARGET, DRAFT, TOKENIZER = tongues.pair()
TEXTS = ["def main():\n    ", "import os\nimport sys\n\nclass Foo(", "x = [1, 2,", "def run(self, "]
MAPPINGS = ("intersection", "strings")
OTHER = tongues.renumbered(TOKENIZER)
SPACED = tongues.in_metaspace(TOKENIZER, "always", "<s>")
UNSPACED = tongues.in_metaspace(TOKENIZER)
SMALL, BIG = tongues.byte_level(300), tongues.byte_level(420, bos="<s>", eos="</s>")
TINY = tiny.llama(vocab_size=len(SMALL) + 12)

#: target, its tokenizer, draft, its tokenizer, the least that must be accepted by intersection and by strings
PAIRS = {
    "other ids": (TARGET, TOKENIZER, tongues.moved(DRAFT, TOKENIZER, OTHER, vocab_size=4200), OTHER, (0.3, 0.3)),
    "metaspace draft, BOS": (TARGET, TOKENIZER, tongues.moved(DRAFT, TOKENIZER, SPACED), SPACED, (0.3, 0.2)),
    "metaspace target": (tongues.moved(TARGET, TOKENIZER, UNSPACED), UNSPACED, DRAFT, TOKENIZER, (0.3, 0.2)),
    "random bytes": (TINY, SMALL, tongues.moved(tiny.noisy_copy(TINY), SMALL, BIG), BIG, (0.2, 0.0)),
    "word pieces": (TINY, SMALL, tiny.llama(seed=4, vocab_size=200), tongues.word_piece(170), (0.0, 0.0)),
}


def prompts(tokenizer, texts=TEXTS):
    """Left-padded ids; random ones for the target that has never seen text."""
    if tokenizer is SMALL:
        return tiny.prompts(4, width=12, vocab_size=len(SMALL))
    tokenizer = copy.copy(tokenizer)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    encoded = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    return {"input_ids": encoded.input_ids, "attention_mask": encoded.attention_mask}


def call(name, mapping, **config):
    target, tokenizer, draft, draft_tokenizer, least = PAIRS[name]
    kwargs = tongues.speaking(draft, tokenizer, draft_tokenizer, mapping, **config)
    return target, prompts(tokenizer), kwargs, least[MAPPINGS.index(mapping)]


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("name", slow_but(PAIRS, "metaspace draft, BOS"))
def test_greedy_equals_plain(name, mapping):
    target, inputs, draft, least = call(name, mapping)
    settings = {"do_sample": False, "max_new_tokens": 24, "pad_token_id": 0}
    draft["num_draft_tokens"] = 5  # the clock of a busy machine may say that none pays
    stats = agrees(target, inputs | settings, **draft)
    assert stats.num_draft_tokens > 0 and stats.draft_acceptance_rate >= least
    found = target.generate(**inputs, **settings)
    for row in range(4):
        single = hs.generate(target, **tiny.unpadded(inputs, row), **settings, **draft)[0]
        expected = found[row, inputs["attention_mask"][row].argmax() :]
        assert single.tolist() == expected[: len(single)].tolist(), "the row on its own"


@pytest.mark.slow
@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("name", a_third(PAIRS))
def test_reproducible_sampling_equals_plain(name, mapping):
    target, inputs, draft, least = call(name, mapping)
    settings = {"do_sample": True, "temperature": 0.6, "max_new_tokens": 24, "pad_token_id": 0}
    draft["num_draft_tokens"] = 3  # a pair that has agreed on little is not asked again
    for seed in range(3):
        assert agrees(target, inputs | settings, seed, **draft).draft_acceptance_rate >= least / 4


@pytest.fixture(scope="module")
def letters():
    """A target of 7 tokens and a draft that has 5 of them, under other ids, and 2 more."""
    target = tiny.llama(seed=3, vocab_size=VOCAB, layers=1, hidden=16)
    tokenizer, draft_tokenizer = tongues.characters("abcdefg"), tongues.characters("zgcyebd")
    draft = tongues.moved(tiny.noisy_copy(target, noise=0.4, seed=5), tokenizer, draft_tokenizer)
    with torch.no_grad():  # what only the draft has is likely, too
        draft.get_output_embeddings().weight[[0, 3]] = draft.get_output_embeddings().weight[[1, 2]] * 0.7
    return target, tokenizer, draft, draft_tokenizer


@pytest.mark.parametrize(
    "name", slow_but(["temperature and top_k", "top_p", "repetition penalty", "a stop"], "top_p", "a stop")
)
def test_the_distribution_of_token_intersection(letters, name):
    kwargs = tongues.speaking(letters[2], letters[1], letters[3], "intersection", num_draft_tokens=3)
    assert_exact(letters[0], kwargs, **SETTINGS[name])


def test_the_distribution_of_string_match(letters):
    drafter = StringMatch(RaggedModel(letters[2], clamp_ids=True), Translation(letters[1], letters[3], VOCAB, VOCAB))
    kwargs = {"draft_model": drafter, "speculative_config": hs.SpeculativeConfig(num_draft_tokens=3)}
    assert_exact(letters[0], kwargs, top_k=3)


def rounds_of(kind, target, tokenizer, draft, draft_tokenizer, inputs, check, **settings):
    """Generate with a drafter that is looked at after every round."""

    class Checked(kind):
        def rollback(self, batch):
            super().rollback(batch)
            check(self, batch)

    pair = Translation(tokenizer, draft_tokenizer, target.config.vocab_size, draft.config.vocab_size)
    drafter = Checked(RaggedModel(draft, clamp_ids=True), pair)
    settings = {"do_sample": False, "max_new_tokens": 24, "pad_token_id": 0} | settings
    config = {"draft_model": drafter, "speculative_config": hs.SpeculativeConfig(num_draft_tokens=4)}
    found = hs.generate(target, **inputs, **settings, **config)
    assert found.tolist() == target.generate(**inputs, **settings).tolist()


@pytest.mark.parametrize("kind", [TokenIntersection, StringMatch])
def test_symptom_8_a_prompt_that_is_shorter_or_longer_in_the_draft(kind):
    """transformers#46936: stale `position_ids`, "the size of tensor a (23) must match tensor b (14)"."""
    target = tiny.build("gpt2", vocab_size=len(BIG))
    for tokenizer, draft_tokenizer in ((SMALL, BIG), (BIG, SMALL)):
        draft = tiny.build("gpt2", seed=2, vocab_size=len(draft_tokenizer))
        lengths = []

        def check(drafter, batch, lengths=lengths):
            if drafter.own:
                lengths.extend(zip(map(len, drafter.own.history), map(len, batch.history), strict=True))

        text = ["for name in sorted(names):\n    print(name, 3.14", "The quick brown fox"]
        ids = tokenizer(text, return_tensors="pt", padding=True)
        inputs = {"input_ids": ids.input_ids, "attention_mask": ids.attention_mask}
        rounds_of(kind, target, tokenizer, draft, draft_tokenizer, inputs, check, max_new_tokens=12)
        assert any(a != b for a, b in lengths)


@pytest.mark.parametrize("kind", [TokenIntersection, StringMatch])
@pytest.mark.parametrize("name", ["metaspace draft, BOS", "random bytes"])
def test_cached_logits_are_fresh_logits(kind, name):
    """After every round the draft's cache stands for the ids of its own batch, and nothing else: of one BOS at most.

    Symptom 9, transformers#46124: "<s> Hello <s> world".
    """
    num_compared = 0

    def check(drafter, batch):
        nonlocal num_compared
        if drafter.own is None:
            return
        own = copy.deepcopy(drafter.own)
        logits = drafter.model.logits(own, ahead=0, num_last=1)[:, 0]
        drafter.model.rollback(own)
        for row, ids in enumerate(own.history):
            assert own.tokens[row, own.host_padding[row] : own.host_lengths[row]].tolist() == ids
            assert draft_tokenizer is not SPACED or (ids[0], ids.count(ids[0])) == (SPACED.bos_token_id, 1)
            fresh = drafter.model.model(torch.tensor([ids])).logits[0, -1]
            torch.testing.assert_close(logits[row], fresh, rtol=1e-3, atol=1e-3)
            num_compared += 1

    target, tokenizer, draft, draft_tokenizer, _ = PAIRS[name]
    rounds_of(kind, target, tokenizer, draft, draft_tokenizer, prompts(tokenizer), check, max_new_tokens=16)
    assert num_compared > 10


@pytest.mark.parametrize("kind", [TokenIntersection, StringMatch])
def test_the_end_token_of_the_draft_is_the_targets(kind):
    tokenizer, draft_tokenizer = tongues.characters("abcdefg", eos="!"), tongues.characters("gfedcba", eos="?")
    target = tiny.llama(seed=8, vocab_size=8, layers=1, hidden=16)
    ids = torch.tensor([[1, 2, 3]])
    settings = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
    said = target.generate(ids, **settings)[0, 3:].tolist()
    token = next(token for i, token in enumerate(said) if i > 1 and token not in said[:i])
    with torch.no_grad():  # the end takes the place of a token that the target says in good time
        for weight in (target.get_output_embeddings().weight, target.get_input_embeddings().weight):
            weight[[token, 7]] = weight[[7, token]]
    draft = tongues.moved(target, tokenizer, draft_tokenizer)
    settings["eos_token_id"] = 7
    proposed = []

    class Noted(kind):
        def propose(self, *args):
            draft = super().propose(*args)
            proposed.extend(draft.tokens[0, : int(draft.num_tokens[0])].tolist())
            return draft

    drafter = Noted(RaggedModel(draft, clamp_ids=True), Translation(tokenizer, draft_tokenizer, 8, 8))
    config = {"draft_model": drafter, "speculative_config": hs.SpeculativeConfig(num_draft_tokens=3)}
    found = hs.generate(target, ids, **settings, **config)
    assert found.tolist() == target.generate(ids, **settings).tolist() and found[0, -1] == 7
    assert 7 in proposed


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_prompt_with_a_hole(mapping):
    """What the mask hides is no part of the draft's text, and a row may be hidden as a whole."""
    target, inputs, draft, _ = call("metaspace draft, BOS", mapping)
    settings = {"do_sample": False, "max_new_tokens": 24, "pad_token_id": 0}
    inputs["attention_mask"][:, -4:-2] = 0
    inputs["attention_mask"][3] = 0
    for rows in (slice(None), slice(3, None)):
        some = {name: value[rows] for name, value in inputs.items()}
        assert agrees(target, some | settings, **draft).num_draft_tokens > 0


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_everything_on_the_targets_side_goes_on_working(mapping):
    """Stop strings, a criterion of the user's, several sequences a prompt, statistics."""
    target, inputs, draft, _ = call("metaspace draft, BOS", mapping)
    settings = {"do_sample": False, "max_new_tokens": 24, "stop_strings": ["\n\n", "self"]}

    class NoDigits(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.tensor([any(map(str.isdigit, TOKENIZER.decode(row[-1]))) for row in input_ids])

    for extra in ({}, {"stopping_criteria": [NoDigits()]}):
        found = hs.generate(target, **inputs, **settings, **extra, **draft)
        assert found.tolist() == target.generate(**inputs, **settings, **extra, tokenizer=TOKENIZER).tolist()
    sampled = inputs | {"do_sample": True, "max_new_tokens": 12, "num_return_sequences": 3}
    assert agrees(target, sampled, seed=1, **draft).num_draft_tokens > 0


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_draft_with_a_shorter_context_falls_back_to_plain(mapping):
    draft = tiny.build("gpt2", vocab_size=len(BIG), n_positions=24)
    settings = {"do_sample": False, "max_new_tokens": 50, "pad_token_id": 0}
    target, drafts = tiny.llama(vocab_size=len(SMALL)), tongues.speaking(draft, SMALL, BIG, mapping)
    stats = agrees(target, prompts(SMALL) | settings, **drafts)
    assert 0 < stats.num_spec_steps < stats.num_rounds


def test_tokenizers_can_be_attached():
    target, tokenizer, draft, draft_tokenizer, _ = PAIRS["metaspace draft, BOS"]
    inputs = prompts(tokenizer)
    settings = {"do_sample": False, "max_new_tokens": 12}
    expected = target.generate(**inputs, **settings)
    config = hs.SpeculativeConfig(tokenizer=tokenizer, draft_tokenizer=draft_tokenizer)
    target = hs.attach(copy.deepcopy(target), draft, config=config)
    with hs.record() as stats:
        assert target.generate(**inputs, **settings).tolist() == expected.tolist()
    assert stats.num_accepted_draft_tokens > 0
    with hs.record() as family:
        found = target.generate(**inputs, **settings, draft_model=DRAFT)
    assert found.tolist() == expected.tolist()
    assert family.draft_acceptance_rate > 0.2, "the attached draft's tokenizer is not that of another draft"
    assert target.generate(**inputs, **settings, draft_model=None).tolist() == expected.tolist()
    with hs.record() as again:
        target.generate(**inputs, **settings, draft_model=draft)
    assert again.num_accepted_draft_tokens == stats.num_accepted_draft_tokens, "the attached draft by name"


def test_a_mapping_goes_with_tokenizers_that_lie_beside_the_models(tmp_path, monkeypatch):
    monkeypatch.setattr(draft_model, "is_padding", lambda *sizes: False)  # of sizes so small
    models = []
    target, tokenizer, draft, draft_tokenizer, _ = PAIRS["metaspace draft, BOS"]
    for name, model, own in (("target", target, tokenizer), ("draft", draft, draft_tokenizer)):
        own.save_pretrained(tmp_path / name)
        models.append(copy.deepcopy(model))
        models[-1].config.name_or_path = str(tmp_path / name)
    call = prompts(tokenizer) | {"do_sample": False, "max_new_tokens": 12}
    config = hs.SpeculativeConfig(vocabulary_mapping="strings")
    with hs.record() as stats:
        found = hs.generate(models[0], **call, draft_model=models[1], speculative_config=config)
    assert found.tolist() == target.generate(**call).tolist() and stats.num_accepted_draft_tokens > 0


#: what of the call is said otherwise, and what the error says
REFUSED = {
    "no target tokenizer": ({"tokenizer": None}, "in a call. needs `tokenizer`"),
    "no tokenizers": (
        {"tokenizer": None, "assistant_tokenizer": None, "vocabulary_mapping": "strings"},
        "`vocabulary_mapping='strings'` needs `draft_tokenizer`",
    ),
    "unknown mapping": ({"vocabulary_mapping": "tokens"}, "'tokens'` is not one of intersection, strings"),
    "not a tokenizer": ({"assistant_tokenizer": print}, "`assistant_tokenizer` is of type builtin_function_or_method"),
    "nothing in common": (
        {"assistant_tokenizer": tongues.characters("ΑΒΓ"), "vocabulary_mapping": "intersection"},
        "cannot draft by `draft_tokenizer`: they have no token of text in common.*another draft",
    ),
    "no text": (
        {"assistant_tokenizer": tongues.characters("abc"), "vocabulary_mapping": "strings"},
        "the draft's tokenizer loses most of a text",
    ),
    "lookbehind without text": (
        {"assistant_lookbehind": 4, "vocabulary_mapping": "intersection"},
        "`assistant_lookbehind` has no effect on a draft that proposes tokens.*vocabulary_mapping='strings'",
    ),
    "lookbehind of nothing": ({"target_lookbehind": 0, "vocabulary_mapping": "strings"}, "`target_lookbehind=0`"),
    "prompt lookup": (
        {"draft_model": None, "prompt_lookup_num_tokens": 2},
        "`assistant_tokenizer` has no effect on drafts by `prompt_lookup_num_tokens`, only on those by `draft_model`",
    ),
    "no draft": ({"draft_model": None}, "`assistant_tokenizer` has no effect without a draft"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_the_first_forward(name):
    kwargs, message = REFUSED[name]
    error = TypeError if name == "not a tokenizer" else ValueError
    target, tokenizer, draft, draft_tokenizer, _ = PAIRS["metaspace draft, BOS"]
    settings = {"draft_model": draft, "tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer} | kwargs
    with tiny.CountForwards(target) as forwards, pytest.raises(error, match=message) as caught:
        config = hs.SpeculativeConfig(vocabulary_mapping=settings.pop("vocabulary_mapping", None))
        hs.generate(target, **prompts(tokenizer), **settings, speculative_config=config, max_new_tokens=4)
    assert not forwards.lengths and "\n" not in str(caught.value)


@pytest.mark.parametrize("mapping", ["strings", "intersection"])
@pytest.mark.parametrize("model_type", ["gpt_neo", "mamba2"])
def test_a_draft_on_the_universal_path(model_type, mapping):
    """Its cache is transformers' own, and its prompt is the text in its own ids."""
    target = architectures.build("causal", model_type)
    letters = "".join(map(chr, [10, *range(0x20, 0x7F), *range(0x4E00, 0x4E00 + target.config.vocab_size - 96)]))
    tokenizer, draft_tokenizer = tongues.characters(letters), tongues.characters("äöü" + letters[::-1])
    draft = tongues.moved(tiny.noisy_copy(target, noise=0.02), tokenizer, draft_tokenizer)
    settings = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    drafts = tongues.speaking(draft, tokenizer, draft_tokenizer, mapping)
    call = architectures.prompts("causal", target, 3) | settings
    assert agrees(target, call, **drafts).draft_acceptance_rate > 0.3
