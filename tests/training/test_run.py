"""Whole runs: from prompts to what `draft_model=` takes."""

import json
import math
import re
import shutil
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from safetensors import SafetensorError
from transformers import TrainingArguments

import hf_speculative as hs
from hf_speculative.distillation.sampling_params import SamplingParams
from hf_speculative.training import deadline, trainer as trainer_module, wording
from hf_speculative.training.acceptance import Meter
from hf_speculative.training.deadline import Watch
from hf_speculative.training.results import Point, Trained
from hf_speculative.training.run import Run, train
from hf_speculative.training.settings import Settings
from hf_speculative.training.trainer import DraftTrainer
from hf_speculative.types import Costs
from tests.support import blocks, tiny, two_processes
from tests.support.execution import fix_costs
from tests.support.plain import agrees

PROMPTS = [{"prompt": ids} for ids in torch.randint(2, tiny.VOCAB, (12, 5), generator=torch.manual_seed(0)).tolist()]
CALL = {"input_ids": torch.tensor([PROMPTS[0]["prompt"]]), "do_sample": False, "max_new_tokens": 12}
SETTINGS = {"head": "layers:1", "steps": 4, "num_evaluations": 2, "batch_size": 4}
SETTINGS |= {"max_new_tokens": 10, "num_draft_tokens": 3}


@pytest.fixture(scope="module")
def learn(tokenizer):
    """A run on the tests' prompts, under their settings but for those that are given."""

    def run(target, folder, settings=None, **arguments):
        return train(target, PROMPTS, folder, Settings(**SETTINGS | (settings or {})), tokenizer=tokenizer, **arguments)

    return run


@pytest.fixture(scope="module")
def trained(learn, tmp_path_factory):
    said, target = [], tiny.llama()
    folder = tmp_path_factory.mktemp("run")
    return target, learn(target, folder, watch=Watch(say=said.append), lr_scheduler_type="linear"), said


def test_the_folder_drafts(trained):
    target, result, said = trained
    assert agrees(target, CALL, draft_model=str(result.folder)).num_draft_tokens > 0
    assert said[0].startswith("10 answers are too few") and "`head='tables'`, which learns from few" in said[0]
    assert re.fullmatch(r"0\.0 million parameters learn from 10 answers\.", said[1])
    assert [sentence[:27] for sentence in said[2:]] == ["Acceptance length after ste"] * 3


def test_a_head_by_the_same_steps(learn, tmp_path):
    """EAGLE-3 over a part of the vocabulary; the folder is what `draft_model=` takes, and what speculators and vLLM read."""
    target = tiny.llama(layers=6)
    result = learn(target, tmp_path, {"head": "eagle3", "draft_vocab_size": 40})
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3" and config["draft_vocab_size"] == 40
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 3] and config["fc_norm"] and config["norm_output"]
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    assert result.kind == "EAGLE-3 head" and len(result.curve) == 3
    assert agrees(target, CALL, draft_model=str(tmp_path)).num_draft_tokens > 0


def test_a_head_that_is_there_is_gone_on_with(learn, tmp_path):
    """A DFlash block, saved, then trained on; what is measured first is what was kept."""
    target, settings = tiny.llama(layers=6), {"head": "dflash", "draft_vocab_size": 40, "anchors": 4}
    first = learn(target, tmp_path / "first", settings)
    assert first.kind == "DFlash block" and len(first.curve) == 3
    assert [len(rates) for rates in first.after.by_position.values()] == [3, 3]
    (tmp_path / "again").mkdir()
    shutil.copy(tmp_path / "first" / "answers.jsonl", tmp_path / "again")
    settings |= {"head": f"draft:{first.folder}", "steps": 2, "num_evaluations": 1}
    again = learn(target, tmp_path / "again", settings)
    assert again.kind == first.kind and again.before.acceptance_length == first.after.acceptance_length
    ours, theirs = (hs.models.loading.load_model(one.folder) for one in (again, first))
    assert ours.config.mask_token_id == theirs.config.mask_token_id and torch.equal(ours.d2t, theirs.d2t)
    assert not torch.equal(ours.layers[0].mlp.up_proj.weight, theirs.layers[0].mlp.up_proj.weight)
    assert torch.equal(ours.lm_head.weight, theirs.lm_head.weight), "the target's, of those ids"
    with pytest.raises(ValueError, match=r"`lora_rank=2`: .* holds a head"):
        learn(target, tmp_path / "lora", settings | {"lora_rank": 2})


def test_heads_with_more_than_is_trained_are_refused(learn, tmp_path):
    target, draft = blocks.pairs(steps=0)[True]
    blocks.write("DSpark", tmp_path / "dspark", target, draft)
    with pytest.raises(ValueError, match="EAGLE-3 heads and DFlash blocks are trained here, without"):
        learn(target, tmp_path / "out", {"head": f"draft:{tmp_path / 'dspark'}"})
    assert not (tmp_path / "out").exists()


def test_prompts_that_leave_no_room(learn, tokenizer, tmp_path):
    target = tiny.llama()
    with tiny.refused(target, "`max_length=2` leaves no"):
        learn(target, tmp_path, {"max_length": 2})
    said, rows = [], [*PROMPTS, *({"prompt": [token] * 20} for token in (3, 4, 5))]
    settings = Settings(**SETTINGS | {"max_length": 16, "steps": 1, "num_evaluations": 1})
    train(target, rows, tmp_path, settings, tokenizer=tokenizer, watch=Watch(say=said.append))
    assert re.fullmatch("[123] prompts? of `max_length` or more: no answer to learn from.", said[0])


def test_a_lora_on_a_draft_by_the_same_steps(trained, learn, tmp_path):
    target, result, _ = trained
    settings = {"head": f"draft:{result.folder}", "lora_rank": 2, "learning_rate": 0.05}
    again = learn(target, tmp_path, settings | {"steps": 2, "num_evaluations": 1})
    before, after = (hs.models.loading.load_model(one.folder, dtype=torch.float32) for one in (result, again))
    changed = {name for name, w in after.named_parameters() if not torch.equal(w, before.get_parameter(name))}
    assert changed and not [name for name in changed if "proj" not in name], "of linear layers alone"
    assert again.kind == "draft model, LoRA of rank 2"


@pytest.mark.parametrize(("free", "advice"), [(1.9, "has 1.90: train on more answers, or use that."), (1.2, "has 1.20.")])
def test_what_it_brought_beside_a_draft_without_training(trained, free, advice):
    _, result, _ = trained

    def measured(step: int, length: float) -> Point:
        return Point(step, {"sampled": length}, {"sampled": [length - 1]}, {"sampled": 900})

    curve = [measured(0, 1.02), measured(2, 1.5)]
    result = replace(result, curve=curve, best_step=2, untrained=measured(0, free))
    said = "1.02 before, 1.50 after 2 steps. `draft_model='auto'`, without training, "
    assert wording.summary(result).endswith(said + advice)
    assert [line.label for line in wording.acceptance(result).lines][-1].endswith("auto, without training")


def test_what_is_kept_of_a_run(trained):
    _, result, _ = trained
    again = Trained.read(result.folder)
    assert again == result and again.num_steps == 4 and again.best_step in (0, 2, 4)
    assert [point.step for point in result.curve] == [0, 2, 4] and result.before.step == 0
    assert result.after.acceptance_length.keys() == {"greedy", "sampled"}
    assert [len(rates) for rates in result.after.by_position.values()] == [3, 3]
    best = max(point.acceptance_length["sampled"] for point in result.curve[1:])
    assert result.after.acceptance_length["sampled"] == best
    assert [*result.untrained.num_tokens] == ["sampled"]
    assert result.data["num_prompts"] == 10 and result.data["num_held_out"] == 2 and result.seconds > 0
    state = json.loads((result.folder / "checkpoints" / "checkpoint-4" / "trainer_state.json").read_text())
    rates = [entry["learning_rate"] for entry in state["log_history"] if "learning_rate" in entry]
    assert rates == pytest.approx([0, 1e-3, 2e-3 / 3, 1e-3 / 3]), "arguments of transformers come first: no cosine"


def test_card(trained):
    _, result, _ = trained
    card = (result.folder / "README.md").read_text()
    assert "tags:\n- speculative-decoding\n- draft-model" in card and "lk\\_hybrid" in card
    assert f"draft_model={result.folder.name!r}" in card and str(result.folder.parent) not in card.split("```sh")[0]
    assert all(f"| {cell} |" in card for cell in ("greedy, before", "temperature 1, after", "steps | greedy"))
    assert "10 prompts, 2 more held out" in card
    assert wording.text(result, card).count("## A draft for") == 1, "a section of its own, written anew"


def test_a_stopped_run_goes_on(trained, learn, tmp_path, monkeypatch):
    """Killed after its first checkpoint, in the middle of writing the second one."""
    target, whole, _ = trained
    said = []
    step = DraftTrainer.training_step

    def killed(self, *args):
        if self.state.global_step == 3:
            raise KeyboardInterrupt
        return step(self, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DraftTrainer, "training_step", killed)
        learn(target, tmp_path, lr_scheduler_type="linear")
    (tmp_path / "checkpoints" / "checkpoint-4").mkdir()
    with pytest.raises(ValueError, match="holds a run already: go on with `resume=True`"):
        learn(target, tmp_path)
    with pytest.raises(ValueError, match="whose loss is 'lk_hybrid' and not 'forward_kl'"):
        learn(target, tmp_path, {"loss": "forward_kl"}, resume=True)
    result = learn(target, tmp_path, resume=True, watch=Watch(say=said.append), lr_scheduler_type="linear")
    assert "Going on after step 2." in said
    assert result.losses == whole.losses and result.curve == whole.curve, "as if it had not been stopped"
    ours, theirs = (hs.models.loading.load_model(one.folder) for one in (result, whole))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_a_folder_that_is_full_keeps_its_checkpoints(trained, learn, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(type(trained[0]), "save_pretrained", full)
    with pytest.raises(OSError, match=r"No space left on device.*the checkpoints before are whole"):
        learn(trained[0], tmp_path)
    assert trainer_module.last_checkpoint(tmp_path / "checkpoints") is None


def test_answers_of_the_data_set_are_taken(tokenizer, tmp_path):
    target = tiny.llama(vocab_size=4096)
    rows = [row | {"answer": "return x\n"} for row in PROMPTS]
    run = Run(target, tmp_path, Settings(**SETTINGS), tokenizer, Watch())
    run.begin(False)
    run.read(rows, {"answers": "answer"})
    run.answer()
    assert len(run.examples) == 10 and not (tmp_path / "answers.jsonl").exists()
    assert tokenizer.decode(run.examples[0].new_ids, skip_special_tokens=True) == "return x\n"


@pytest.mark.parametrize("changed", ["target", "texts"])
def test_answers_of_another_target_or_other_ones_are_not_gone_on_with(changed, tokenizer, tmp_path):
    for rows, seed in ((PROMPTS, 0), (PROMPTS[::-1], 0)) if changed == "texts" else ((PROMPTS, 0), (PROMPTS, 1)):
        target = tiny.noisy_copy(tiny.llama(vocab_size=4096), float(seed))
        given = [row | {"answer": f"return {place}\n"} for place, row in enumerate(rows)]
        settings, keywords = Settings(**SETTINGS), {"tokenizer": tokenizer, "reading": {"answers": "answer"}}
        if rows is PROMPTS and seed == 0:
            train(target, given, tmp_path, settings, **keywords)
            assert train(target, given, tmp_path, settings, resume=True, **keywords).num_steps == 4
    with pytest.raises(ValueError, match=r"holds a run (of another target|on other texts).*: name another folder"):
        train(target, given, tmp_path, settings, resume=True, **keywords)


def test_texts_are_cut_to_the_positions_of_the_models(tokenizer, tmp_path):
    target, small = (tiny.build("gpt2", vocab_size=4096, n_positions=positions) for positions in (48, 24))
    for part in (small, tokenizer):
        part.save_pretrained(tmp_path / "small")
    rows = [row | {"answer": "return x + 1\n" * 40} for row in PROMPTS]
    settings = Settings(**SETTINGS | {"head": f"draft:{tmp_path / 'small'}"})
    said, keywords = [], {"tokenizer": tokenizer, "reading": {"answers": "answer"}}
    result = train(target, rows, tmp_path / "run", settings, watch=Watch(say=said.append), **keywords)
    assert result.best_step is not None and any("cut to the 24 positions of the draft" in text for text in said)


@pytest.mark.parametrize("head", ["eagle3", "dflash"])
def test_heads_take_no_checkpoints_of_gradients(learn, tmp_path, head):
    with pytest.raises(ValueError, match="`gradient_checkpointing`: the steps of a head"):
        learn(tiny.llama(), tmp_path / "out", {"head": head}, gradient_checkpointing=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"head": "medusa"}, "`head='medusa'`: give one of eagle3, dflash, jetspec, tables, layers:N, draft:FOLDER"),
        ({"head": "layers:two"}, "give the number of layers"),
        ({"head": "draft:"}, "names no model"),
        ({"head": "dflash:2"}, "give one of eagle3"),
        ({"lora_rank": 4}, "`lora_rank=4` needs a draft that is there"),
        ({"loss": "mse"}, "`loss='mse'`: choose one of lk_hybrid"),
        ({"loss": "reverse_kl", "use": SamplingParams(top_k=5)}, "infinite where `top_k`"),
        ({"minutes": 1.0}, "both say how long"),
        ({"answers_per_prompt": 2, "use": SamplingParams(temperature=0)}, "greedy answers are the same"),
        ({"batch_size": 0}, "`batch_size=0`: give 1 or more"),
        ({"learning_rate": -1.0}, "`learning_rate=-1.0`: give more than 0"),
    ],
    ids=str,
)
def test_settings_that_cannot_work(given, told):
    with pytest.raises(ValueError, match=told):
        Settings(**SETTINGS | given)


def weights_of(folder):
    return (folder / "model.safetensors").read_bytes()


def test_the_same_seed_gives_the_same_answers_and_weights(trained, learn, tmp_path, monkeypatch):
    """Whatever draft lengths the clock of the machine has led to; killed while it answered, too."""
    target, whole, _ = trained
    fix_costs(monkeypatch, Costs(0.0, 0.01))
    again = learn(target, tmp_path / "again", lr_scheduler_type="linear")

    def killed(done, total):
        if done == 3:
            raise KeyboardInterrupt

    folder = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        learn(target, folder, watch=Watch(count=killed), lr_scheduler_type="linear")
    for result in (again, learn(target, folder, resume=True, lr_scheduler_type="linear")):
        lines = [sorted((one.folder / "answers.jsonl").read_text().splitlines()[1:]) for one in (result, whole)]
        assert lines[0] == lines[1] and weights_of(result.folder) == weights_of(whole.folder)


def test_a_run_that_is_done_goes_on_if_asked_for_more(trained, learn, tmp_path):
    target, whole, _ = trained
    folder, said = shutil.copytree(whole.folder, tmp_path / "run"), []
    arguments = {"resume": True, "watch": Watch(say=said.append)}
    before = weights_of(folder)
    assert learn(target, folder, **arguments) == replace(whole, folder=folder) and weights_of(folder) == before
    assert said == ["This run has made its 4 steps: give more `steps`, or another folder."]
    more = learn(target, folder, {"steps": 6}, **arguments)
    assert more.num_steps == 6 and [point.step for point in more.curve] == [0, 2, 4, 6]


def test_a_run_that_was_killed_after_its_last_step_is_finished(trained, learn, tmp_path):
    target, whole, _ = trained
    folder = shutil.copytree(whole.folder, tmp_path / "run")
    (folder / "model.safetensors").unlink()
    replace(whole, folder=folder, best_step=None, curve=[]).write()
    away = whole.folder.rename(whole.folder.with_name("away"))  # checkpoints are named by the folder that they were written to
    try:
        result = learn(target, folder, resume=True)
    finally:
        away.rename(whole.folder)
    assert weights_of(folder) == weights_of(whole.folder) and result.curve == whole.curve
    assert result.seconds == pytest.approx(whole.seconds) and result.num_steps == whole.num_steps


def test_a_folder_without_a_run_is_not_resumed(learn, tmp_path):
    with pytest.raises(ValueError, match=r"typo'` holds no run to go on with: name its folder, or begin one without"):
        learn(tiny.llama(), tmp_path / "typo", resume=True)
    assert not (tmp_path / "typo").exists()
    (tmp_path / "other.txt").touch()
    with pytest.raises(ValueError, match="holds no run to go on with"):
        learn(tiny.llama(), tmp_path, resume=True)


@pytest.mark.parametrize("stopped_at", ["prompts.jsonl", None])
def test_a_run_that_was_stopped_early_is_resumed(stopped_at, tokenizer, tmp_path):
    """While the target wrote its prompts, or before anything was written."""
    if stopped_at is not None:
        (tmp_path / stopped_at).touch()
    Run(tiny.llama(), tmp_path, Settings(**SETTINGS), tokenizer, Watch()).begin(True)


def test_several_devices_are_for_a_launcher(learn, tmp_path, monkeypatch):
    """Else Trainer would copy the draft to each visible GPU, for losses that are no numbers."""
    prepare, found = TrainingArguments.__post_init__, []

    def with_two(self):
        prepare(self)
        self._n_gpu = 2

    monkeypatch.setattr(TrainingArguments, "__post_init__", with_two)
    monkeypatch.setattr(DraftTrainer, "__init__", lambda self, *given, args, **others: found.append(args.n_gpu) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        learn(tiny.llama(), tmp_path)
    assert found == [1]


class Machine:
    """A clock on which an answer takes 9 seconds, and what is slowed what is given."""

    def __init__(self, monkeypatch):
        self.now, self.part = 0.0, ""
        for module in (deadline, trainer_module):
            monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        self.watch = Watch(self.count, part=lambda name: setattr(self, "part", name))

    def count(self, done, total):
        self.now += 9.0 * (self.part == "answers of the target")

    def slowed(self, method, seconds):
        def slow(*args, **kwargs):
            self.now += seconds
            return method(*args, **kwargs)

        return slow


@pytest.mark.parametrize(("step", "measuring"), [(1.0, 2.0), (16.0, 10.0), (0.2, 24.0)])
def test_minutes_bound_the_whole_run(step, measuring, learn, tmp_path, monkeypatch):
    machine, target = Machine(monkeypatch), tiny.llama()
    monkeypatch.setattr(DraftTrainer, "training_step", machine.slowed(DraftTrainer.training_step, step))
    monkeypatch.setattr(Meter, "measure", machine.slowed(Meter.measure, measuring / 2))
    monkeypatch.setattr(DraftTrainer, "step_seconds", lambda *args: step)
    settings = {"steps": None, "minutes": 2.0, "num_evaluations": 8}
    result = learn(target, tmp_path, settings, watch=machine.watch)
    assert 60 < machine.now <= 120 + step
    assert result.data["num_answers"] == 5, "48 of 120 seconds are for answers"
    assert result.after is not None and result.best_step > 0 and weights_of(tmp_path)
    assert result.num_steps == max(point.step for point in result.curve), "those that were made"


def test_a_run_whose_time_cut_its_answers_goes_on_with_those(learn, tmp_path, monkeypatch):
    """Else what a store holds would be of other texts."""
    machine, target = Machine(monkeypatch), tiny.llama()
    monkeypatch.setattr(DraftTrainer, "step_seconds", lambda *args: 1.0)
    settings = {"steps": None, "minutes": 2.0, "num_evaluations": 1}
    store = tmp_path / "store"
    first = learn(target, tmp_path / "run", settings, watch=machine.watch, max_steps=2, store=store)
    again = learn(target, tmp_path / "run", settings, resume=True, max_steps=4, store=store)
    assert first.data["num_answers"] == again.data["num_answers"] == 5


def test_a_run_of_two_processes_goes_on_with_one(learn, tmp_path):
    """With all answers, and without more."""
    target, settings = tiny.llama(), {"num_evaluations": 1}
    first = learn(target, tmp_path, settings, max_steps=2)
    path = tmp_path / "answers.jsonl"
    header, *lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([header, *lines[::2]]))
    (tmp_path / "answers.jsonl.rank1").write_text("".join([header, *lines[1::2]]))
    (tmp_path / "answers.jsonl.rank1.4711").write_text(header[:9])  # by a kill, within a line
    again = learn(target, tmp_path, settings, resume=True, max_steps=4)
    assert again.data["num_answers"] == first.data["num_answers"] == 10
    assert len(path.read_text().splitlines()) == 1 + len(lines[::2])


def test_the_first_process_says_when_the_time_is_over():
    """Clocks differ, and a process that went on alone would wait for the others for ever."""
    for first, own in ((0.0, math.inf), (math.inf, 0.0)):
        processes = Mock(gather=lambda entries, first=first: [first < 2.0, *entries])
        pace = deadline.Pace(Mock(left=own, seconds=60.0), 1.0, Watch(), processes)
        pace.started, control = 0.0, Mock(should_training_stop=False)
        pace.step_seconds = 1.0
        pace.on_step_end(None, Mock(global_step=1, max_steps=9), control)
        assert control.should_training_stop == (first < 2.0) == pace.is_early


@pytest.mark.release
@pytest.mark.parametrize("more", [("store",), ()])
def test_two_processes_train_as_one_does(tmp_path, more):
    """The same losses and the same acceptance, each process having answered, recorded, learned from and measured its share."""
    (tmp_path / "two").mkdir()
    two, other = two_processes.results(two_processes.train, tmp_path / "two", *more)
    one = two_processes.train(tmp_path)
    assert [loss for _, loss in two["losses"]] == pytest.approx([loss for _, loss in one["losses"]], rel=1e-4)
    assert two["lengths"] == other["lengths"]
    assert two["lengths"] == one["lengths"]
    assert len(list((tmp_path / "two").glob("store/*/*.safetensors"))) == 8 * len(more)
    assert len((tmp_path / "two" / "run" / "answers.jsonl.rank1").read_text().splitlines()) == 5
