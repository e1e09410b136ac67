"""Decoding a batch of rows under one setting: where rows end, and where texts differ."""

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria, T5Config, T5ForConditionalGeneration

import hf_speculative as hs
from hf_speculative.measuring import decoder
from hf_speculative.measuring.journal import Row
from hf_speculative.measuring.settings import Setting
from hf_speculative.types import Costs
from tests.support import tiny
from tests.support.evaluations import OPTIONS, TEXTS
from tests.support.execution import fix_costs


def test_where_and_how_closely_texts_differ(model, tokenizer):
    prompt = tokenizer("def main():\n")["input_ids"]
    kwargs = {"max_new_tokens": 6, "min_new_tokens": 6, "pad_token_id": 1}
    ids = model.generate(torch.tensor([prompt]), **kwargs, do_sample=False)[0, len(prompt) :].tolist()
    one = decoder.Decoder(model, tokenizer, {}, kwargs, seed=0)
    changed = [*ids[:4], (ids[4] + 1) % 4000, 9]
    setting = Setting(draft_model="draft", num_draft_tokens=2)
    found = one.difference(setting, prompt, Row(3, ids, ""), Row(3, changed, ""))
    with torch.no_grad():
        best, second = model(torch.tensor([prompt + ids[:4]])).logits[0, -1].topk(2).values.tolist()
    assert (found.index, found.position, found.setting) == (3, 4, "draft, 2 tokens, greedy")
    assert found.logit_gap == pytest.approx(best - second, abs=1e-4)
    assert one.difference(setting, prompt, Row(3, ids, ""), Row(3, ids[:2], "")).position == 2


def test_differences_are_noted_once_a_text(evaluate, monkeypatch, tmp_path):
    decode = decoder.Decoder.decode

    def altered(self, setting, *args):
        call = decode(self, setting, *args)
        if not setting.is_plain and call.batch == 2:
            call.rows[0].new_ids[5] += 1
        return call

    monkeypatch.setattr(decoder.Decoder, "decode", altered)
    difference, asked = decoder.Decoder.difference, []
    monkeypatch.setattr(decoder.Decoder, "difference", lambda *args: asked.append(1) or difference(*args))
    for _ in range(2):  # the second time from the file
        evaluation = evaluate(results=tmp_path / "out.jsonl")
        assert [(d.index, d.position) for d in evaluation.differences] == [(2, 5)]
        setting = evaluation.settings[1]
        assert evaluation.totals(setting).num_identical == 4 and evaluation.identical(setting)[2] is False
    assert len(asked) == 1


def test_encoder_decoder_models(tokenizer):
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = T5Config(**sizes, decoder_start_token_id=1, pad_token_id=1)
    target = tiny._spread(T5ForConditionalGeneration(config).eval())
    evaluation = hs.evaluate(target, tiny.noisy_copy(target), TEXTS, tokenizer=tokenizer, batch_size=2, **OPTIONS)
    plain, setting = evaluation.settings
    totals = evaluation.totals(setting)
    assert totals.num_identical == 5 and totals.statistics.num_accepted_draft_tokens
    ids = tokenizer(TEXTS[1], return_tensors="pt").input_ids
    expected = target.generate(ids, max_new_tokens=12, do_sample=False)[0, 1:].tolist()
    row = evaluation.rows(plain)[1]
    assert row.new_ids == expected
    one = decoder.Decoder(target, tokenizer, {}, {"max_new_tokens": 12, "pad_token_id": 1}, seed=0)
    changed = Row(1, [*row.new_ids[:3], 7, 7], "")
    with torch.no_grad():
        output = target(input_ids=ids, decoder_input_ids=torch.tensor([[1, *row.new_ids[:3]]]))
    best, second = output.logits[0, -1].topk(2).values.tolist()
    found = one.difference(setting, ids[0].tolist(), row, changed)
    assert found.position == 3 and found.logit_gap == pytest.approx(best - second, abs=1e-4)


class Counts(LogitsProcessor):
    num_calls = 0

    def __call__(self, input_ids, scores):
        self.num_calls += 1
        return scores.index_fill(1, torch.tensor([self.num_calls]), 1e4)


class EndsEarly(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 7 == 2


def test_a_draft_is_measured_without_guesses_beside_it(evaluate, model, monkeypatch):
    """Which would join a call for one text, and whose tokens would count as those of any draft."""
    fix_costs(monkeypatch, Costs(0.01, 0.01))
    useless = tiny.llama(seed=7, vocab_size=model.config.vocab_size, positions=64)
    evaluation = evaluate(draft_model=useless, num_draft_tokens=(None,), batch_size=1, max_new_tokens=40)
    counts = evaluation.totals(evaluation.settings[-1]).statistics
    assert counts.num_draft_forwards >= counts.num_draft_tokens > 0


def test_what_a_processor_remembers_stays_in_its_call(evaluate):
    evaluation = evaluate(logits_processor=[Counts()])
    assert all(row.new_ids == [*range(1, 13)] for s in evaluation.settings for row in evaluation.rows(s).values())


def test_plain_rows_end_where_they_ended(evaluate, model, tokenizer):
    """Whatever ended them, and whether or not the model has an end token; and a last token that is the padding's counts."""
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids
    new = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=1)[0, ids.shape[1] :].tolist()
    both = {"eos_token_id": new[4], "pad_token_id": new[4]}
    for options, length in (
        ({"stopping_criteria": [EndsEarly()]}, None),
        ({"stopping_criteria": [EndsEarly()], "eos_token_id": 3}, None),
        ({"stop_strings": ["\n" + tokenizer.decode(new[0])]}, 1),  # begins in the prompt
        (both, 5),
        ({"generation_config": GenerationConfig(**both)}, 5),
        ({"pad_token_id": new[-1]}, 12),
    ):
        evaluation = evaluate(batch_size=2, **options)
        plain, setting = evaluation.settings
        assert evaluation.totals(setting).num_identical == 5 and not evaluation.differences, options
        if length is not None:
            assert evaluation.rows(plain)[0].new_ids == new[:length]
        alone = evaluate(**options)
        assert all(row.new_ids == alone.rows(plain)[index].new_ids for index, row in evaluation.rows(plain).items())
