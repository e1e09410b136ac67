"""Evaluation on data sets: the same prompts under every setting, nothing lost, nothing averaged wrongly."""

import copy
import json
import statistics

import pytest
import torch
from transformers import GenerationConfig

import hf_speculative as hs
from hf_speculative.measuring.run import evaluate_until_stopped
from hf_speculative.measuring.settings import Setting
from hf_speculative.verification import RULES
from tests.support import drafters, tongues
from tests.support.command import run_command, write_prompts
from tests.support.evaluations import OPTIONS, TEXTS, counts, kill_after, watch_calls


def test_totals_are_sums_and_texts_are_plain_decodings(evaluate, model, tokenizer):
    evaluation = evaluate(num_draft_tokens=(2, 4), prompt_lookup_num_tokens=(3,))
    assert evaluation.is_complete and not evaluation.bad_rows and not evaluation.differences
    plain, *settings = evaluation.settings
    assert plain.is_plain and [s.num_draft_tokens for s in settings] == [2, 4, None]
    for index, text in enumerate(TEXTS):
        ids = tokenizer(text, return_tensors="pt").input_ids
        expected = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=1)[0, ids.shape[1] :].tolist()
        assert all(evaluation.rows(setting)[index].new_ids == expected for setting in evaluation.settings)
        assert evaluation.rows(plain)[index].prompt == text
    for setting in settings:
        totals, calls = evaluation.totals(setting), evaluation.calls[setting.name].values()
        assert totals.num_prompts == totals.num_identical == 5
        assert totals.seconds == sum(call.seconds for call in calls) > 0
        rows = [row.statistics for row in evaluation.rows(setting).values()]
        for name in ("num_new_tokens", "num_draft_tokens", "num_accepted_draft_tokens", "num_rounds"):
            total = sum(getattr(row, name) for row in rows)
            assert getattr(totals.statistics, name) == total and (total or setting.num_draft_tokens is None)
        assert totals.statistics.num_calls == 5 and totals.statistics.num_target_forwards <= 60
        timed = [evaluation.calls[s.name].values() for s in (setting, plain)]
        speeds = [[call.num_new_tokens / call.seconds for call in calls] for calls in timed]
        assert totals.speedup.median == statistics.median(own / other for own, other in zip(*speeds, strict=True))
        assert totals.speedup.num_pairs == 5 and totals.speedup.spread is None, "too few for an interval"
    json.dumps(evaluation.to_dict(), allow_nan=False)


def test_a_prompt_is_one_observation_before_a_file_is_read_and_after(evaluate, tmp_path):
    """Of the error of a mean over prompts, however often each was decoded."""
    evaluation = evaluate(num_draft_tokens=(2,), repeats=3, results=tmp_path / "out.jsonl")
    (setting,) = evaluation.settings[1:]
    for one in (evaluation, hs.Evaluation.load(tmp_path / "out.jsonl")):
        rows = one.totals(setting).statistics.rows
        assert len(rows) == len(TEXTS) and sum(row.num_rounds for row in rows) == one.totals(setting).statistics.num_rounds


def test_which_tokens_were_drafted_and_with_what_chance(evaluate):
    evaluation = evaluate(temperatures=(0.0, 1.0))
    for setting in evaluation.settings:
        for row in evaluation.rows(setting).values():
            if setting.is_plain:
                assert row.statistics is None and row.acceptance_prob == []
                continue
            assert len(row.acceptance_prob) == len(row.new_ids)
            drafted = [chance for chance in row.acceptance_prob if chance is not None]
            # A stop inside a block cuts an accepted token that counts as the round's own.
            assert len(drafted) - row.statistics.num_accepted_draft_tokens in (0, 1)
            assert all(0 <= chance <= 1 for chance in drafted) and (setting.temperature or set(drafted) <= {1})


def test_sampling_is_seeded_by_batch_and_leaves_the_global_generator_alone(evaluate):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = evaluate(temperatures=(1.0,))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    assert counts(evaluate(temperatures=(1.0,))) == counts(first)
    assert counts(evaluate(temperatures=(1.0,), seed=1)) != counts(first)
    one, other = evaluate(TEXTS[:1] * 2, temperatures=(1.0,)).rows(Setting(temperature=1.0)).values()
    assert one.new_ids != other.new_ids, "a batch has a seed of its own"


def test_reproducible_sampling_is_compared_token_for_token(evaluate):
    evaluation = evaluate(temperatures=(1.0,), options={"reproducible": True})
    plain, setting = evaluation.settings
    assert evaluation.totals(setting).num_identical == 5 and evaluation.totals(plain).num_identical is None
    free = evaluate(temperatures=(1.0,))
    assert free.totals(free.settings[1]).num_identical is None, "another text of the same distribution"


def test_a_setting_names_its_rule(evaluate, monkeypatch):
    judged = set()
    for rule in RULES.values():
        own = rule.__call__
        monkeypatch.setattr(rule, "__call__", lambda self, *args, own=own: judged.add(type(self)) or own(self, *args))
    for name, rule in RULES.items():
        judged.clear()
        evaluation = evaluate(TEXTS[:1], temperatures=(1.0,), options={"rule": name})
        assert judged == {rule} and evaluation.settings[1].label == f"draft, 3 tokens, rule={name}"
    with pytest.raises(ValueError, match="did you mean 'block'"):
        Setting(draft_model="draft", num_draft_tokens=3, rule="blok")
    with pytest.raises(TypeError, match="give its name"):
        Setting(draft_model="draft", num_draft_tokens=3, rule=RULES["block"]())


def test_a_batch_that_fails_counts_under_no_setting(evaluate, monkeypatch, tmp_path):
    def fail(setting, batch, indices):
        if batch == 1 and setting.num_draft_tokens == 3:  # that of 2 tokens has been decoded by then
            raise RuntimeError("out of luck")

    watch_calls(monkeypatch, fail)
    evaluation = evaluate(batch_size=2, num_draft_tokens=(2, 3), results=tmp_path / "out.jsonl")
    assert evaluation.is_complete and [row.index for row in evaluation.bad_rows] == [2, 3]
    assert "out of luck" in evaluation.bad_rows[0].message
    assert {evaluation.totals(setting).num_prompts for setting in evaluation.settings} == {3}
    assert counts(evaluate(batch_size=2, num_draft_tokens=(2, 3), results=tmp_path / "out.jsonl")) == counts(evaluation)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dataset": None}, "`dataset` is missing"),
        ({"dataset": {"prompt": TEXTS}}, "pass a datasets.Dataset"),
        ({"dataset": "nowhere.jsonl"}, "no such file"),
        ({"dataset": []}, "no rows"),
        ({"draft_model": {}}, "nothing to evaluate"),
        ({"settings": [Setting(draft_model="other", num_draft_tokens=2)]}, "names no draft of this call"),
        ({"settings": [Setting(draft_model="draft")], "options": {"top_k": 3}}, "`options` has no effect beside"),
        ({"num_draft_tokens": (2, 2)}, "settings given twice"),
        ({"options": {"repetition_penalty": 1.3}}, "`repetition_penalty=1.3` is not about drafting"),
        ({"generation_config": GenerationConfig(do_sample=True)}, "`do_sample` differs between settings"),
        ({"num_draft_tokens": (0,)}, "`num_draft_tokens=0`"),
        ({"temperatures": (-1,)}, "`temperature=-1`"),
        ({"temperature": 0.5}, "`temperature` differs between settings"),
        ({"max_length": 20}, "give `max_new_tokens`"),
        ({"batch_size": 0}, "`batch_size=0`"),
        ({"limit": 0}, "`limit=0`"),
        ({"references": "answer"}, "`score` and `references` have an effect together"),
        ({"score": "bleu"}, "give both, or neither"),
        ({"score": "bleu", "references": "{{ a }}"}, "is not exact_match"),
        ({"score": "no.such:thing", "references": "{{ a }}"}, "cannot be imported"),
        ({"score": 3, "references": "{{ a }}"}, "pass a function of predictions"),
        ({"rule": "token"}, "`rule` differs between settings: give `options`"),
        ({"num_draft_tokens": 4}, r"give `num_draft_tokens=\[4\]`"),
        ({"temperatures": 0.5}, r"give `temperatures=\[0.5\]`"),
        ({"top_p": 0.9}, "`top_p=0.9` has no effect on greedy decoding"),
        ({"draft_tokenizers": {"other": None}}, "the drafts are draft"),
    ],
)
def test_what_is_refused(evaluate, options, message, monkeypatch):
    begun = kill_after(monkeypatch, 0)
    with pytest.raises((ValueError, TypeError), match=message):
        evaluate(**options)
    assert not begun


def test_drafts_by_name_and_attached(evaluate, model, small, tmp_path, tokenizer):
    with pytest.raises(ValueError, match="two drafts are called draft"):
        evaluate(draft_model=[small, small])
    evaluation = evaluate(draft_model={"a": small, "b": small})
    assert [s.draft for s in evaluation.settings] == [None, "a", "b"]
    assert evaluate(draft_model={"copies": drafters.suffix_drafter()}).settings[1].draft == "copies"
    small.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    evaluation = evaluate(draft_model=str(tmp_path))
    assert evaluation.header["drafts"] == {str(tmp_path): str(tmp_path)}
    assert evaluation.totals(evaluation.settings[1]).speedup
    evaluation = hs.evaluate(hs.attach(copy.deepcopy(model), small), None, TEXTS, tokenizer=tokenizer, **OPTIONS)
    assert evaluation.totals(evaluation.settings[1]).statistics.num_draft_tokens
    assert evaluation.totals(evaluation.settings[0]).statistics is None


@pytest.mark.parametrize("several", [False, True])
def test_sources_that_were_attached(several, model, small, tokenizer):
    """What is no model has no name of its own."""
    source = (small, "suffix") if several else drafters.suffix_drafter()
    target = hs.attach(copy.deepcopy(model), source)
    evaluation = hs.evaluate(target, None, TEXTS, tokenizer=tokenizer, **OPTIONS)
    assert evaluation.settings[1].draft == "attached"
    assert evaluation.totals(evaluation.settings[1]).statistics.num_draft_tokens


@pytest.mark.slow
def test_a_length_is_what_the_settings_name_says(model, small, tokenizer):
    """Whatever the configs say, and what is attached. Chains, which are all that attached models' passes take."""
    options = {**OPTIONS, "tokenizer": tokenizer, "num_draft_tokens": (None, 5), "max_new_tokens": 24}
    options["options"] = {"tree_top_k": 1}
    expected = counts(hs.evaluate(model, small, TEXTS, **options))
    draft, target = copy.deepcopy(small), copy.deepcopy(model)
    draft.generation_config.num_assistant_tokens = 2
    assert counts(hs.evaluate(model, draft, TEXTS, **options)) == expected
    hs.attach(target, small, config=hs.SpeculativeConfig(num_draft_tokens=2))
    assert counts(hs.evaluate(target, None, TEXTS, **options)) == expected
    hs.detach(target).generation_config.num_assistant_tokens_schedule = "heuristic"
    assert counts(hs.evaluate(target, small, TEXTS, **options)) == expected


def test_the_tokenizer_that_was_attached_along_with_a_draft_is_told(model, small, tokenizer):
    config = hs.SpeculativeConfig(tokenizer=tokenizer, draft_tokenizer=tongues.renumbered(tokenizer))
    target = hs.attach(copy.deepcopy(model), small, config=config)
    evaluation = hs.evaluate(target, None, TEXTS, tokenizer=tokenizer, **OPTIONS)
    assert evaluation.totals(evaluation.settings[1]).num_identical == 5


def test_a_stopped_evaluation_tells_what_it_has_and_that_it_is_a_part(tmp_path, monkeypatch):
    kill_after(monkeypatch, 3)
    data, results = write_prompts(tmp_path / "p.txt", ["a", "b", "c"]), tmp_path / "eval.jsonl"
    args = ("--dataset", data, "--results", results, "--max-new-tokens", "4", "--num-draft-tokens", "2")
    result = run_command("eval", *args)
    assert result.exit_code == 130, "a script goes on after 0"
    assert "the same command continues from there" in result.stderr and "Unfinished: of 3 prompts" in result.stdout


def test_what_was_decoded_outlives_a_score_that_is_stopped(model, tokenizer):
    def stopped(predictions, references):
        raise KeyboardInterrupt

    rows = [{"prompt": text, "answer": "x"} for text in TEXTS[:2]]
    options = OPTIONS | {"tokenizer": tokenizer, "score": stopped, "references": "answer"}
    evaluation, is_stopped = evaluate_until_stopped(model, "suffix", rows, **options)
    assert is_stopped and all(len(evaluation.rows(setting)) == 2 for setting in evaluation.settings)
