"""Where drafts come from: a new source is a class in a tuple, heads are found by their config, each fits or says why."""

import re

import pytest

import hf_speculative as hs
from hf_speculative.call import sources
from hf_speculative.call.configuration import as_keywords
from hf_speculative.call.option_table import checked
from hf_speculative.drafting import DraftModel
from hf_speculative.drafting.draft_model import DraftModelSource
from hf_speculative.drafting.proposers import CorpusSuffix, PromptSuffix, Recycling
from hf_speculative.drafting.source import HeadSource
from hf_speculative.drafting.texts import NgramSource
from hf_speculative.models import RaggedModel, RecordingModel
from tests.architectures.check import build
from tests.support import tied, tiny
from tests.support.plain import same_as_plain


class ToySource(HeadSource):
    """Heads whose configs have a `toy_depth`."""

    method = "toy"
    config_fields = ("toy_depth",)

    def unsupported_reason(self, config):
        size = self.draft_model.config.hidden_size
        return None if size == config.hidden_size else f"a target of hidden size {size}"

    def max_draft_tokens(self, model):
        return self.draft_model.config.toy_depth

    def drafter(self, call):
        return ToyDrafter(RaggedModel(self.draft_model))


class ToyDrafter(DraftModel):
    hidden_layers = (0, -1)

    def follow(self, target):
        assert isinstance(target, RecordingModel) and target.recorded == (0, -1)


@pytest.fixture
def head(target, monkeypatch):
    monkeypatch.setattr(sources, "SOURCES", (ToySource, *sources.SOURCES))
    head = tiny.noisy_copy(target)
    head.config.toy_depth = 3
    return head


@pytest.mark.parametrize("given", [["recycling", "suffix"], ("suffix", "recycling"), "recycling+suffix"])
def test_methods_in_any_order_are_one_source(given, target):
    source = sources.source_of("draft_model", given, {"suffix_decoding_max_cached_requests": 2})
    assert source.label == source.cost_key == "suffix+recycling"
    assert [type(proposer) for proposer in source.proposers(target)] == [PromptSuffix, CorpusSuffix, Recycling]
    assert "corpus" in source.options()
    assert checked("draft_model", given) == "suffix+recycling"
    assert type(sources.source_of("draft_model", ["ngram"])) is NgramSource


def test_a_model_and_methods_are_one_source(target, draft):
    for given in ([draft, "suffix"], ("suffix", draft)):
        assert checked("draft_model", given) == (draft, "suffix")
        source = sources.source_of("draft_model", given)
        assert source.label == "draft_model and suffix" and source.draft_model is draft
    assert checked("draft_model", "./a+b+suffix+ngram") == ("./a+b", "suffix+ngram"), "a name, and methods behind it"
    assert same_as_plain(target, tiny.prompts(2), draft_model=[draft, "recycling"], num_draft_tokens=3).num_draft_tokens


@pytest.mark.parametrize(
    "given, message",
    [
        (["suffix", "recyling"], r"cannot be loaded[^$]*Did you mean 'recycling'"),
        (["auto", "ngram"], "'auto' is several of these already"),
        (["ngram", "ngram"], "names 'ngram' twice"),
        ([], "names nothing: give a transformers model"),
    ],
)
def test_methods_that_do_not_go_together(target, given, message):
    with pytest.raises(ValueError, match=message):
        hs.generate(target, **tiny.prompts(1), draft_model=given, max_new_tokens=4)


def test_an_option_of_none_of_the_methods_has_no_effect(target):
    call = tiny.prompts(1) | {"draft_model": ["recycling", "ngram"], "max_new_tokens": 4}
    assert hs.generate(target, **call, max_matching_ngram_size=2).shape[0] == 1
    with pytest.raises(ValueError, match="`suffix_decoding_max_cached_requests=2` has no effect"):
        hs.generate(target, **call, speculative_config=hs.SpeculativeConfig(suffix_decoding_max_cached_requests=2))


def test_a_source_is_a_line_in_the_tuple(target, head):
    stats = same_as_plain(target, tiny.prompts(3), draft_model=head, num_assistant_tokens_schedule="constant")
    assert 0.1 < stats.draft_acceptance_rate < 0.98
    assert max(stats.histogram) == 3, "by default as many tokens as it can propose"
    answer = hs.check(target, head)
    assert answer and answer.draft.why == "reads the target's own states"
    hs.attach(target, head)
    try:
        assert same_as_plain(target, tiny.prompts(1)).num_draft_tokens > 0
    finally:
        hs.detach(target)
    (completion,) = hs.generate_batches(target, [[1, 2, 3]], draft_model=head, max_new_tokens=8)
    assert completion.statistics.num_draft_tokens > 0


MODELS = {"own": tiny.llama, "wide": lambda: tiny.llama(hidden=64), "t5": lambda: build("seq2seq", "t5")}


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("own", {"num_draft_tokens": 4}, "`num_draft_tokens=4`: .* `draft_model` names proposes at most 3 tokens"),
        ("own", as_keywords({"optimize": True}), "`optimize=True` has no effect on drafts by `LlamaForCausalLM`"),
        ("own", {"speculation_type": "dflash"}, "needs a DFlash draft, but `draft_model` is of type LlamaForCausalLM"),
        ("wide", {}, "was made for a target of hidden size 32, the target, .*, has hidden size 64"),
        (
            "t5",
            {},
            "`LlamaForCausalLM` reads hidden states, and T5ForConditionalGeneration is an encoder-decoder model",
        ),
    ],
)
def test_what_a_source_says_is_refused_before_the_first_forward(head, name, kwargs, message):
    model = MODELS[name]()
    with tiny.refused(model, message):
        hs.generate(model, **tiny.prompts(1), draft_model=head, max_new_tokens=4, **kwargs)
    if not kwargs:  # it is not the call's fault
        assert re.search(message, hs.check(model, head).reason)
        with pytest.raises(ValueError, match=message):
            hs.attach(model, head)


@pytest.mark.parametrize(
    ("name", "value"), [("output_hidden_states", True), ("output_attentions", True), ("prefill_chunk_size", 4)]
)
def test_what_of_a_call_keeps_it_off_the_ragged_path_is_named(target, name, value):
    asked = {name: value, "return_dict_in_generate": True, "max_new_tokens": 4}
    message = f"reads a ragged cache.*: leave `{name}={value}` out, or use a draft model"
    with tiny.refused(target, message):
        hs.generate(target, **tiny.prompts(1), assistant_early_exit=1, **asked)


@pytest.mark.parametrize(
    ("make", "kind"),
    [(lambda: tied.with_dflash(steps=0), "DFlashSource"), (tied.with_gemma4_assistant, "Gemma4AssistantSource")],
    ids=["dflash", "gemma4"],
)
def test_published_heads_are_found_by_their_config(make, kind):
    """Of whatever class; a causal language model with some such field is none."""
    model, head = make()
    head.__class__ = type("Renamed", (type(head),), {"main_input_name": "input_ids"})
    assert type(sources.source_of("draft_model", head)).__name__ == kind
    assert same_as_plain(model, tiny.prompts(2), draft_model=head, num_draft_tokens=2).num_draft_tokens > 0
    model.config.block_size = model.config.backbone_hidden_size = 32
    assert type(sources.source_of("draft_model", model)).__name__ == "DraftModelSource"


def test_settings_beside_a_source_as_an_object(target, draft):
    """They are its own, as beside the model."""
    call = tiny.prompts(1) | {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    settings = {"speculative_config": hs.SpeculativeConfig(tree_top_k=2, num_draft_tokens=6)}
    drafted = []
    for source in (draft, DraftModelSource(draft)):
        with hs.record() as stats:
            hs.generate(target, **call, **settings, draft_model=source)
        drafted.append((stats.num_draft_tokens, stats.acceptance_histogram))
    assert drafted[0] == drafted[1]
