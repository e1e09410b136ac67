"""Evaluation in transformers' Trainer with a draft: the same predictions, and statistics among the metrics."""

import copy
import importlib

import pytest
import torch
from transformers import GenerationConfig, Seq2SeqTrainer, TrainingArguments
from transformers.utils.quantization_config import QuantizationMethod

import hf_speculative as hs
from hf_speculative.integrations.trainer import SpeculativeSeq2SeqTrainer, completions_of, prompts_of
from hf_speculative.models import pool
from hf_speculative.models.shallow import REPLACED
from tests.architectures.check import build
from tests.support import tiny, two_processes
from tests.support.trainers import CONSTANT, NUM_ROWS, SpeculativeTrainer, arguments, checkpointed, rows

RATES = {"draft_acceptance_rate", "mean_acceptance_length", "tokens_per_second"}
COUNTS = {"num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "num_target_forwards"}


def pairs(num_rows=NUM_ROWS, seed=0):
    """Prompts and answers for an encoder-decoder model."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 50, (num_rows, 9), generator=generator)
    labels = torch.randint(3, 50, (num_rows, 6), generator=generator)
    mask = torch.ones_like(ids[0])
    return [{"input_ids": row, "attention_mask": mask, "labels": y} for row, y in zip(ids, labels, strict=True)]


@pytest.fixture(scope="module")
def t5():
    model = build("seq2seq", "t5")
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = 0
    return model


def speculative(model, folder, draft, num_new=6, cls=SpeculativeTrainer, args=None, **given):
    """A trainer that drafts a constant number of tokens."""
    settings = {"speculative_config": CONSTANT, "generation_kwargs": {"max_new_tokens": num_new}}
    return cls(model, args or arguments(folder), draft_model=draft, **settings | given)


def first_token(prediction):
    """A metric, so that Seq2SeqTrainer generates at all."""
    return {"first": float(prediction.predictions[:, 1].mean())}


def test_transformers_defaults_are_not_taken_for_settings(target, draft):
    """`Seq2SeqTrainer` writes them into the model's generation config after its first batch."""
    model = copy.deepcopy(target)
    hs.attach(model, copy.deepcopy(draft), config=hs.SpeculativeConfig(tree_top_k=2))
    call = tiny.prompts(1) | {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(**call)
    model.generation_config.update(**GenerationConfig._get_default_generation_params(), defaults_only=True)
    assert torch.equal(model.generate(**call), expected)
    hs.attach(model, copy.deepcopy(draft), num_draft_tokens=3)
    with hs.record() as stats:
        model.generate(**call)
    assert len(stats.histogram) <= 4
    model.generation_config.num_assistant_tokens = 2
    hs.attach(model, copy.deepcopy(draft))
    with hs.record() as stats:
        model.generate(**call)
    assert stats.num_draft_tokens == 2 * stats.num_spec_steps, "what differs was set"


def test_a_quantized_draft_is_not_cast(target, draft, tmp_path):
    """transformers refuses a `dtype` for it, `None` as well."""
    quantized = copy.deepcopy(draft)
    quantized.is_quantized, quantized.quantization_method = True, QuantizationMethod.BITS_AND_BYTES
    SpeculativeSeq2SeqTrainer(target, arguments(tmp_path), draft_model=quantized)


def test_predictions_of_an_encoder_decoder_model_are_those_of_seq2seq_trainer(t5, tmp_path):
    """Under `generation_max_length`, and in `predict` under a keyword of the call."""
    args, data = arguments(tmp_path, generation_max_length=18), pairs()
    plain = Seq2SeqTrainer(copy.deepcopy(t5), args, eval_dataset=data, compute_metrics=first_token)
    drafting = {"draft_model": tiny.noisy_copy(t5, 0.05), "speculative_config": CONSTANT}
    ours = SpeculativeSeq2SeqTrainer(t5, args, eval_dataset=data, compute_metrics=first_token, **drafting)
    expected, found = plain.evaluate(), ours.evaluate()
    assert found["eval_loss"] == expected["eval_loss"] and found["eval_first"] == expected["eval_first"]
    assert {f"eval_{name}" for name in RATES | COUNTS} <= found.keys()
    assert 0 < found["eval_draft_acceptance_rate"] < 1
    assert found["eval_num_target_forwards"] < 3 * 17, "three batches, 17 tokens a row"
    expected, found = (trainer.predict(data, max_new_tokens=24) for trainer in (plain, ours))
    assert found.predictions.tolist() == expected.predictions.tolist()
    assert found.predictions.shape == (NUM_ROWS, 25) and found.label_ids.tolist() == expected.label_ids.tolist()
    assert found.metrics["test_num_accepted_draft_tokens"] > 0


def test_predictions_of_a_decoder_only_model_are_completions(target, draft, tmp_path):
    """Both trainers: what plain `generate` writes after each prompt alone, next to the row's own completion."""
    data = rows()
    for cls in (SpeculativeSeq2SeqTrainer, SpeculativeTrainer):
        trainer = cls(target, arguments(tmp_path), draft_model=draft, generation_kwargs={"max_new_tokens": 10})
        output = trainer.predict(data)
        assert output.metrics["test_num_accepted_draft_tokens"] > 0 and "test_loss" in output.metrics
        for row, prediction, labels in zip(data, output.predictions, output.label_ids, strict=True):
            is_label = row["labels"] != -100
            prompt = row["input_ids"][: is_label.int().argmax()][None]
            expected = target.generate(prompt, max_new_tokens=10, do_sample=False)[0, prompt.shape[1] :]
            assert prediction.tolist() == expected.tolist()
            assert labels[labels != -100].tolist() == row["labels"][is_label].tolist() and labels[0] != -100
    assert target not in pool._kept and draft not in pool._kept, "training needs the memory"
    without_labels = [{"input_ids": row["input_ids"][:4], "attention_mask": torch.ones(4)} for row in data]
    found = trainer.predict(without_labels).predictions[0]
    expected = target.generate(data[0]["input_ids"][None, :4], max_new_tokens=10, do_sample=False)[0, 4:]
    assert found.tolist() == expected.tolist()


def test_prompts_are_cut_out_of_rows_padded_on_either_side():
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7, 8, 0], [0, 0, 5, 6, 7], [5, 6, 7, 8, 9]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]),
        "labels": torch.tensor([[-100, -100, 7, 8, -100], [-100, -100, -100, -100, 7], [-100] * 5]),
        "token_type_ids": torch.tensor([[1, 2, 3, 4, 0], [0, 0, 1, 2, 3], [1, 2, 3, 4, 5]]),
        "position_ids": torch.arange(5).expand(3, 5),
        "pixel_values": torch.ones(3, 2),
    }
    prompts = prompts_of(inputs, pad_token_id=60)
    assert prompts["input_ids"].tolist() == [[60, 60, 60, 5, 6], [60, 60, 60, 5, 6], [5, 6, 7, 8, 9]]
    assert prompts["attention_mask"].tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [1] * 5]
    assert prompts["token_type_ids"].tolist() == [[0, 0, 0, 1, 2], [0, 0, 0, 1, 2], [1, 2, 3, 4, 5]]
    assert prompts["pixel_values"] is inputs["pixel_values"] and prompts.keys().isdisjoint({"labels", "position_ids"})
    assert completions_of(inputs["labels"]).tolist() == [[7, 8], [7, -100], [-100, -100]]
    assert completions_of(torch.full((2, 3), -100)).tolist() == [[-100], [-100]]
    with pytest.raises(ValueError, match=r"rows \[0, 1\].*have no prompt.*-100.*`generation_inputs`"):
        prompts_of({"input_ids": torch.ones(2, 3), "labels": torch.ones(2, 3)}, 0)
    with pytest.raises(ValueError, match=r"`labels` have shape \(2, 4\) and `input_ids` \(2, 3\)"):
        prompts_of({"input_ids": torch.ones(2, 3), "labels": torch.ones(2, 4)}, 0)


def test_metrics_reach_the_logs_the_files_and_the_choice_of_the_best_model(target, draft, tmp_path):
    """Trained for two steps; two data sets, each with names of its own."""
    data = {"a": rows(4), "b": rows(9, seed=1)}
    args = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "best"}
    args = arguments(tmp_path, metric_for_best_model="eval_b_draft_acceptance_rate", **args)
    sets = {"train_dataset": rows(8), "eval_dataset": data}
    trainer = speculative(copy.deepcopy(target), tmp_path, draft, args=args, **sets)
    checkpointed(trainer.model)
    trainer.train()
    found, history = trainer.evaluate(max_new_tokens=12), trainer.state.log_history
    for name, num_rows in (("a", 4), ("b", 9)):
        logged = [logs for logs in history if f"eval_{name}_loss" in logs]
        assert len(logged) == 3 and all(f"eval_{name}_{rate}" in logs for logs in logged for rate in RATES | COUNTS)
        assert all(found[key] == value for key, value in logged[-1].items() if key != "step")
        accepted = [logs[f"eval_{name}_num_accepted_draft_tokens"] for logs in logged]
        assert 0 < accepted[0] <= 5 * num_rows < accepted[2], "keywords of the call reach every data set"
    assert trainer.state.best_metric == max(logs.get("eval_b_draft_acceptance_rate", 0) for logs in history[:-2])
    trainer.save_metrics("eval", found)
    assert "eval_b_mean_acceptance_length" in (tmp_path / "eval_results.json").read_text()


def test_nothing_is_left_behind(t5, tmp_path):
    """The model, its generation_config, the draft's mode, memory: all as before, after an error, too."""
    model, draft = copy.deepcopy(t5), tiny.noisy_copy(t5).train()
    trainer = speculative(model, tmp_path, draft, cls=SpeculativeSeq2SeqTrainer)
    before = copy.deepcopy(vars(model.generation_config)), copy.deepcopy(vars(draft.generation_config))

    def unchanged():
        assert (vars(model.generation_config), vars(draft.generation_config)) == before
        assert not {*REPLACED} & vars(model).keys() and draft.training
        assert model not in pool._kept and draft not in pool._kept

    trainer.evaluate(pairs())
    unchanged()
    with pytest.raises(ValueError, match="num_beams"):
        trainer.evaluate(pairs(), num_beams=2)
    unchanged()
    bad = [*pairs(8), {name: value[:1] for name, value in pairs(1)[0].items()} | {"labels": torch.tensor([10**6])}]
    with pytest.raises(IndexError):  # in the loss, after generating
        trainer.evaluate(bad)
    unchanged()
    hs.attach(model, tiny.noisy_copy(t5, seed=5))
    attached = [vars(model)[name] for name in REPLACED]
    trainer.evaluate(pairs(2))
    assert all(vars(model)[name] is one for name, one in zip(REPLACED, attached, strict=True))


def test_without_a_draft_of_its_own(target, draft, tmp_path):
    """What was attached is counted; a source named by keyword serves; a call may be plain; no draft, no metrics."""
    model = copy.deepcopy(target)
    trainer = SpeculativeTrainer(model, arguments(tmp_path), generation_kwargs={"max_new_tokens": 6})
    plain = trainer.evaluate(rows(4))
    assert not {f"eval_{name}" for name in RATES | COUNTS} & plain.keys()
    assert trainer.evaluate(rows(4), prompt_lookup_num_tokens=3)["eval_num_target_forwards"] > 0
    hs.attach(model, draft)
    assert trainer.evaluate(rows(4))["eval_num_draft_tokens"] > 0
    assert "eval_num_draft_tokens" not in trainer.evaluate(rows(4), draft_model=None)


def test_what_cannot_work_is_said_when_the_trainer_is_made(target, draft, tmp_path):
    with pytest.raises(ValueError, match=r"`draft_model` has no effect.*`predict_with_generate=True`"):
        SpeculativeTrainer(target, arguments(tmp_path, predict_with_generate=False), draft_model=draft)
    with pytest.raises(ValueError, match=r"`draft_model` has no effect.*`prediction_loss_only=False`"):
        SpeculativeTrainer(target, arguments(tmp_path, prediction_loss_only=True), draft_model=draft)
    with pytest.raises(TypeError, match="`draft_model` is of type Linear"):
        SpeculativeTrainer(target, arguments(tmp_path), draft_model=torch.nn.Linear(1, 1))
    for kwargs in ({"num_draft_tokens": 4}, {"max_matching_ngram_size": 2}):
        with pytest.raises(ValueError, match=f"`{next(iter(kwargs))}"):
            SpeculativeTrainer(target, arguments(tmp_path), generation_kwargs=kwargs)
    SpeculativeTrainer(target, arguments(tmp_path, predict_with_generate=False)).evaluate(rows(2))
    without_field = SpeculativeTrainer(target, arguments(tmp_path, TrainingArguments), draft_model=draft)
    assert without_field.evaluate(rows(2), max_new_tokens=5)["eval_num_target_forwards"] > 0


def test_settings_of_the_arguments(target, draft, tmp_path):
    """Plain Trainer does not know `generation_max_length` and `generation_config`."""
    before = copy.deepcopy(vars(target.generation_config))
    for given, length in (
        ({"generation_max_length": 15}, 15 - 6),  # prompts of up to six tokens
        ({"generation_config": GenerationConfig(max_new_tokens=5)}, 5),
    ):
        found = SpeculativeTrainer(target, arguments(tmp_path, **given), draft_model=draft).predict(rows(4))
        assert found.predictions.shape == (4, length)
    assert vars(target.generation_config) == before
    beams = arguments(tmp_path, generation_num_beams=2, generation_max_length=15)
    with pytest.raises(ValueError, match="`num_beams=2`"):
        SpeculativeTrainer(target, beams, draft_model=draft).predict(rows(4))


def test_an_encoder_decoder_model_under_plain_trainer(t5, tmp_path):
    trainer = SpeculativeTrainer(t5, arguments(tmp_path), draft_model=tiny.noisy_copy(t5), speculative_config=CONSTANT)
    data = pairs(5)
    found = trainer.predict(data, max_new_tokens=12)
    expected = t5.generate(torch.stack([row["input_ids"] for row in data]), max_new_tokens=12)
    assert found.predictions.tolist() == expected.tolist() and found.metrics["test_num_draft_tokens"] > 0
    assert found.label_ids.tolist() == [row["labels"].tolist() for row in data]
    given = dict.fromkeys(("input_ids", "labels", "decoder_input_ids", "decoder_attention_mask"))
    assert trainer.generation_inputs(given).keys() == {"input_ids"}


def test_a_missing_extra_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("transformers.utils.is_accelerate_available", lambda: False)
    with pytest.raises(ImportError, match=r"pip install 'hf_speculative\[accelerate\]'"):
        importlib.reload(hs.integrations.trainer)


@pytest.mark.release
def test_counts_are_summed_over_processes(target, draft, tmp_path):
    """Two processes of batch 2 count what one of batch 8 does; 11 rows are made even by the first, which counts again."""
    found = two_processes.results(two_processes.evaluate, tmp_path)
    alone = {"generation_kwargs": {"max_new_tokens": 8}, "draft_model": draft, "speculative_config": CONSTANT}
    trainer = SpeculativeTrainer(target, arguments(tmp_path), **alone)
    expected = {"even": trainer.evaluate(rows(12)), "uneven": trainer.evaluate(rows(11) + rows(1))}
    for kind, metrics in expected.items():
        for rank in found:
            for name in COUNTS - {"num_target_forwards"} | {"draft_acceptance_rate", "mean_acceptance_length"}:
                assert rank[kind][f"eval_{name}"] == metrics[f"eval_{name}"], (kind, name)
