"""The target's own answers, and the journal that survives a kill."""

import json

import pytest
import torch

from hf_speculative.distillation.sampling_params import SamplingParams
from hf_speculative.distillation.teacher import Example, token_counts, unique
from hf_speculative.training import answers
from hf_speculative.training.answers import answer, header_of, read_answers
from hf_speculative.training.settings import Settings

PROMPTS = {0: [1, 2, 3], 2: [4, 5], 3: [6, 7, 8, 9], 7: [10, 11, 12]}
SETTINGS = Settings(use=SamplingParams(temperature=0), max_new_tokens=6)
HEADER = header_of("tiny", "digest", SETTINGS)


def test_answers_are_the_targets_own(target, tmp_path):
    path, told = tmp_path / "answers.jsonl", []
    answer(target, PROMPTS, SETTINGS, path, HEADER, watch=lambda *counts: told.append(counts))
    found = read_answers(path, HEADER)
    for index, ids in PROMPTS.items():
        plain = target.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=6)
        assert found[index, 0] == tuple(plain[0, len(ids) :].tolist())
    assert len(found) == 4 and told[0] == (0, 4) and told[-1] == (4, 4)


def test_a_killed_run_goes_on_where_it_was(target, tmp_path, monkeypatch):
    path, asked = tmp_path / "answers.jsonl", []
    generate = answers.generate_batches

    def noted(model, prompts, **kwargs):
        asked.append(list(prompts))
        return generate(model, asked[-1], **kwargs)

    monkeypatch.setattr(answers, "generate_batches", noted)
    answer(target, {0: PROMPTS[0], 2: PROMPTS[2]}, SETTINGS, path, HEADER)
    with path.open("ab") as file:
        file.write(b'{"index": 3, "sample": 0, "new_i')  # the line that the kill cut off
    answer(target, PROMPTS, SETTINGS, path, HEADER)
    assert asked == [[PROMPTS[0], PROMPTS[2]], [*PROMPTS.values()]], "drawn together, as without the kill"
    assert sorted(json.loads(line)["index"] for line in path.read_text().splitlines()[1:]) == [0, 2, 3, 7]


def test_several_sampled_answers_and_shares(target, tmp_path):
    settings = Settings(use=SamplingParams(temperature=1.5), max_new_tokens=8, answers_per_prompt=3)
    header, found = header_of("tiny", "digest", settings), {}
    for rank in (0, 1):
        path = tmp_path / f"{rank}.jsonl"
        answer(target, PROMPTS, settings, path, header, share=(rank, 2))
        own = read_answers(path, header)
        assert len(own) == 6
        found |= own
    assert len(found) == 12 and len({found[0, sample] for sample in range(3)}) == 3, "other draws"


@pytest.mark.parametrize("other", [{"max_new_tokens": 7}, {"use": {}}, {"target": "another"}], ids=str)
def test_answers_of_another_run_are_refused(tmp_path, other):
    for text in ("", json.dumps(HEADER) + "\n"):
        (tmp_path / "a.jsonl").write_text(text)
        assert read_answers(tmp_path / "a.jsonl", HEADER) == {}
    with pytest.raises(ValueError, match=f"another run, whose {next(iter(other))} is"):
        read_answers(tmp_path / "a.jsonl", HEADER | other)
    (tmp_path / "b.jsonl").write_text("nonsense\n")
    with pytest.raises(ValueError, match=r"b\.jsonl is no journal of answers"):
        read_answers(tmp_path / "b.jsonl", HEADER)


def test_texts_are_learned_once_and_cut():
    one, two = Example((1, 2), (3, 4, 5)), Example((1, 2), (3, 4, 6))
    assert unique([one, two, one], 4) == [Example((1, 2), (3, 4))]
    assert unique([one], 2) == [], "nothing of the answer is left"
    assert token_counts([one, two], 7).tolist() == [0, 0, 0, 2, 2, 1, 1]


def test_answers_of_other_journals_are_not_made_again(target, tmp_path):
    """Such as those of a run of other processes."""
    answer(target, PROMPTS, SETTINGS, tmp_path / "before.jsonl", HEADER, share=(0, 2))
    answer(target, PROMPTS, SETTINGS, tmp_path / "now.jsonl", HEADER, others=[tmp_path / "before.jsonl"])
    before, now = (read_answers(tmp_path / f"{name}.jsonl", HEADER) for name in ("before", "now"))
    assert len(before) == len(now) == 2 and not before.keys() & now.keys()
