"""Every error a user can meet: raised before the first forward, naming the argument, the value and the way out."""

import warnings

import pytest
import torch
import transformers as hf
from transformers import CompileConfig, DynamicCache, GenerationConfig, StaticCache, StoppingCriteria

import hf_speculative as hs
from hf_speculative import Rule, SpeculativeConfig, Verdict
from hf_speculative.call.configuration import as_keywords
from hf_speculative.call.statistics import Statistics
from hf_speculative.schedules import Constant
from hf_speculative.types import Costs
from tests.support import tiny, tongues
from tests.support.execution import fix_costs


class Lossy(Rule):
    def __call__(self, draft, target_probs, sampler):
        return Verdict(draft.num_tokens, target_probs[:, -1].argmax(-1))


class Never(StoppingCriteria):
    eos_token_id = None  # as criteria have it with which plain `generate` fills up

    def __call__(self, input_ids, scores, **kwargs):
        return torch.zeros(len(input_ids), dtype=torch.bool)


IDS = torch.tensor([[0, 0, 3, 4], [5, 6, 7, 8]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
WITH_DRAFT = {
    "trees beside a threshold": (
        {"speculative_config": SpeculativeConfig(tree_top_k=2), "assistant_confidence_threshold": 0.4},
        "tree_top_k.*assistant_confidence_threshold=0.4",
    ),
    "both names": ({"num_draft_tokens": 2, "num_assistant_tokens": 3}, "mean the same but differ"),
    "beams": ({"num_beams": 3}, "num_beams=3.*leave it out"),
    "use_cache": ({"use_cache": False}, "use_cache=False.*use_cache=True"),
    "lossy field": ({"assistant_ensemble_weight": 0.5}, "assistant_ensemble_weight=0.5.*exact"),
    "early exit": ({"assistant_early_exit": 1}, "`draft_model` and `assistant_early_exit` are two"),
    "synced_gpus": ({"synced_gpus": True}, "synced_gpus=True.*not initialised.*leave it out"),
    "lookbehind": ({"assistant_lookbehind": 5}, "assistant_lookbehind.*no effect"),
    "prompt lookup, too": ({"prompt_lookup_num_tokens": 3}, "`draft_model` and `prompt_lookup_num_tokens`"),
    "custom_generate": ({"custom_generate": lambda *a, **k: None}, "custom_generate"),
    "generator, greedy": ({"generator": torch.Generator()}, "`generator` has no effect on greedy"),
    "offloaded cache": ({"cache_implementation": "offloaded"}, "cache_implementation='offloaded'"),
    "quantised cache": ({"cache_implementation": "quantized"}, "cache_implementation='quantized'"),
    "healing without padding": (
        {"token_healing": True, "tokenizer": tongues.characters("abc"), "attention_mask": None},
        "token_healing=True.*set `tokenizer.pad_token`",
    ),
    "healing without a tokenizer": ({"token_healing": True}, "token_healing=True.*pass `tokenizer=`"),
    # An end token would stand in for the padding.
    "no padding": ({"eos_token_id": None, "pad_token_id": None, "stopping_criteria": [Never()]}, "pass `pad_token_id="),
    "lossy rule": ({"rule": Lossy()}, "Lossy .*allow_lossy"),
    "two drafters": ({"draft_model": [hs.Drafter(), hs.Drafter()]}, "`draft_model` lists 2 models"),
    "rule and reproducible": (
        {"reproducible": True, "do_sample": True, "speculative_config": SpeculativeConfig(rule="block")},
        "reproducible=True.*SampledVerification, and yours is BlockVerification",
    ),
    "schedule and length": ({"num_draft_tokens": 3, "schedule": Constant(2)}, "num_draft_tokens.*no effect beside"),
    "draft of another kind": ({"draft_model": torch.nn.Linear(2, 2)}, "`draft_model` is of type Linear"),
    "ids with a fraction": ({"input_ids": IDS + 0.6}, "`input_ids` is of type torch.float32"),
    "no rows": ({"input_ids": IDS[:0], "attention_mask": MASK[:0]}, r"shape \(0, 4\), an empty batch"),
    "an id too large": ({"input_ids": IDS + 54}, "row 1 of the prompt holds the id 62.* for 0 to 60"),
    "an id below 0": ({"input_ids": IDS - 4}, "row 0 of the prompt holds the id -1"),
    "short mask": ({"attention_mask": MASK[:, 1:]}, "has shape"),
    "schedule object and name": (
        {"num_assistant_tokens_schedule": "heuristic", "speculative_config": SpeculativeConfig(schedule=Constant(2))},
        "num_assistant_tokens_schedule.*no effect beside",
    ),
    "lookup in the config": (
        {"generation_config": GenerationConfig(prompt_lookup_num_tokens=3)},
        "`draft_model` and `prompt_lookup_num_tokens`",
    ),
    "assistant_tokenizer alone": ({"assistant_tokenizer": tongues.characters("a")}, "needs `tokenizer`: give both"),
    "compile": ({"compile_config": CompileConfig()}, "compile_config"),
    "stop strings": ({"stop_strings": ["x"]}, "pass `tokenizer=`"),
}


@pytest.mark.parametrize("name", WITH_DRAFT)
def test_a_call_with_a_draft(target, draft, name):
    kwargs, message = WITH_DRAFT[name]
    error = TypeError if "is of type" in message else ValueError
    call = {"input_ids": IDS, "attention_mask": MASK, "draft_model": draft, "max_new_tokens": 4, "pad_token_id": 0}
    with tiny.refused(target, message, error):
        hs.generate(target, **as_keywords(call | kwargs))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("text", r"`inputs` is of type str.*tokenizer\(text, return_tensors=\"pt\"\).*`generate_batches`"),
        (["one", "two"], "`inputs` is of type list.*encode text"),
        ([[1, 2]], r"`inputs` is of type list.*`torch.tensor\(\[ids\]\)`"),
        ({"input_ids": IDS}, r"`inputs` is of type dict.*`generate\(model, \*\*encoded\)`"),
    ],
    ids=["text", "texts", "list of ids", "encoded"],
)
def test_ids_that_are_no_tensor(target, draft, ids, message):
    for settings in ({}, {"draft_model": draft}):
        with tiny.refused(target, message, TypeError):
            hs.generate(target, ids, max_new_tokens=2, **settings)


def test_two_drafts(target, draft, unrelated):
    with pytest.raises(ValueError, match="`draft_model` and `assistant_model` mean the same but differ"):
        hs.generate(target, IDS, draft_model=draft, assistant_model=unrelated)
    hs.generate(target, IDS, draft_model=draft, assistant_model=draft, max_new_tokens=2, pad_token_id=0)


def test_caches_that_cannot_be_continued(target, draft):
    turn = target.generate(IDS[1:], max_new_tokens=4, do_sample=False, return_dict_in_generate=True)
    short = {"draft_model": draft, "max_new_tokens": 2}
    with pytest.raises(ValueError, match="pass the whole sequence"):
        hs.generate(target, turn.sequences[:, :5], past_key_values=turn.past_key_values, **short)
    with pytest.raises(ValueError, match=r"StaticCache.*DynamicCache"):
        hs.generate(target, IDS, past_key_values=StaticCache(target.config, max_cache_len=64), **short)
    empty = DynamicCache(config=target.config)
    out = hs.generate(target, IDS[1:], past_key_values=empty, draft_model=draft, max_new_tokens=6)
    assert empty.get_seq_length() == out.shape[1] - 1, "a cache the user gave is filled"


def test_a_config_with_two_draft_lengths():
    with pytest.raises(ValueError, match="`num_draft_tokens` has no effect beside"):
        SpeculativeConfig(schedule=Constant(2), num_draft_tokens=3)


def test_a_draft_of_another_vocabulary(target):
    """Padding explains a few entries; more need the tokenizers of both, and so does a draft of another kind of model."""
    sizes = {"num_hidden_layers": 1, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_heads": 4, "decoder_start_token_id": 0}
    t5 = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=tiny.VOCAB, **sizes)).eval()
    drafts = {
        "LlamaForCausalLM has a vocabulary of 300 entries and the target one of 61": tiny.llama(vocab_size=300),
        "T5ForConditionalGeneration is an encoder-decoder model and the target is not": t5,
    }
    for message, draft in drafts.items():
        answer = hs.check(target, draft)
        assert not answer and message in answer.reason
        with tiny.refused(target, f"`draft_model`: {message}") as error:
            hs.generate(target, IDS, draft_model=draft, max_new_tokens=2, pad_token_id=0)
        assert "tokenizer=` and `assistant_tokenizer=`" in str(error.value)
    assert hs.check(target, tiny.llama(vocab_size=64, layers=1))


def test_a_draft_that_costs_more_than_its_target(draft):
    big, small = tiny.llama(layers=4), tiny.llama(layers=1)
    with pytest.warns(UserWarning, match=r"`draft_model`: a token takes .* are the two mixed up"):
        hs.generate(small, IDS, draft_model=big, max_new_tokens=2, pad_token_id=0)
    # Of experts a token goes through few, and embeddings are looked up.
    sparse = tiny.build("mixtral", num_local_experts=8, num_experts_per_tok=2)
    wide = tiny.llama(vocab_size=tiny.VOCAB)
    wide.set_input_embeddings(torch.nn.Embedding(100_000, 32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hs.generate(tiny.llama(), IDS, draft_model=wide, max_new_tokens=2, pad_token_id=0)
        hs.generate(tiny.llama(layers=4), IDS, draft_model=sparse, max_new_tokens=2, pad_token_id=0)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rotary_tables_that_change_with_the_length(draft, rope_type):
    """Crossing the point of change is refused; staying below it is fine."""
    model = tiny.llama()
    rope = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 16}
    model.config.rope_parameters = rope
    limit = model.config.max_position_embeddings if rope_type == "dynamic" else 16
    with pytest.raises(ValueError, match=f"{rope_type} position embeddings, which change at {limit} tokens"):
        hs.generate(model, IDS, draft_model=draft, max_new_tokens=limit, pad_token_id=0)
    assert hs.generate(model, IDS, draft_model=draft, max_new_tokens=4, pad_token_id=0).shape == (2, 8)


def test_attach(target, draft):
    with pytest.raises(TypeError, match="`model` is of type Linear"):
        hs.attach(torch.nn.Linear(2, 2), draft)
    with pytest.raises(TypeError, match=r"`draft_model` is of type builtin.*: give a transformers model, its name"):
        hs.attach(target, print)
    model = tiny.llama()
    model.generate = print
    with pytest.raises(ValueError, match=r"`model\.generate` was already replaced"):
        hs.attach(model, draft)


def test_positional_arguments(draft):
    model = hs.attach(tiny.llama(), draft)
    with pytest.raises(TypeError, match="multiple values for inputs"):
        model.generate(IDS, inputs=IDS)
    with pytest.raises(TypeError, match="positional arguments"):
        model.generate(*[None] * 40)


def test_a_draft_that_never_pays_is_told_once(target, draft, monkeypatch):
    """As large as its target: nothing is drafted, and the statistics say why."""
    fix_costs(monkeypatch, Costs(1.0, 0.5))
    model = hs.attach(tiny.llama(), draft)
    long = tiny.prompts(2) | {"max_new_tokens": 80, "do_sample": False, "pad_token_id": 0}
    told = "a round with 1 draft token takes 2.5 plain steps, the first one 4.0 more, and brings about 1.7 tokens"
    with pytest.warns(UserWarning, match=f"nothing was drafted, .*: {told}. A smaller draft"), hs.record() as stats:
        model.generate(**long)
    assert stats.num_draft_tokens == 0 and stats.reason == told and stats.to_dict()["reason"] == told
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(**long)
    with hs.record() as stats:
        model.generate(**long)
        model.generate(**long, num_draft_tokens=2)
    assert stats.num_draft_tokens > 0 and stats.reason is None
    assert Statistics.from_dict(Statistics(reason="x").to_dict()).reason == "x"
