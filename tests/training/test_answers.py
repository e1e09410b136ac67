"""The target's own answers, and the journal that survives a kill."""

import json

import pytest
import torch

from hf_speculative.training import answers
from hf_speculative.training.answers import Asked, Journal, answer, examples_of
from hf_speculative.training.examples import Example, token_counts, unique
from hf_speculative.training.sampling_params import SamplingParams

PROMPTS = {0: [1, 2, 3], 2: [4, 5], 3: [6, 7, 8, 9], 7: [10, 11, 12]}
ASKED = Asked("tiny", "digest", SamplingParams(temperature=0), max_new_tokens=6)


def test_answers_are_the_targets_own(target, tmp_path):
    journal = Journal(tmp_path / "answers.jsonl", ASKED)
    told = []
    answer(target, PROMPTS, ASKED, journal, watch=lambda *counts: told.append(counts))
    found = list(examples_of([journal], PROMPTS))
    for example, ids in zip(found, PROMPTS.values(), strict=True):
        plain = target.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=6)
        assert example == Example(tuple(ids), tuple(plain[0, len(ids) :].tolist()))
    assert told[0] == (0, 4) and told[-1] == (4, 4)


def test_a_killed_run_goes_on_where_it_was(target, tmp_path, monkeypatch):
    path, asked = tmp_path / "answers.jsonl", []
    generate = answers.generate_batches
    monkeypatch.setattr(
        answers, "generate_batches", lambda model, prompts, **kwargs: generate(model, note(prompts), **kwargs)
    )

    def note(prompts):
        asked.append(list(prompts))
        return asked[-1]

    journal = Journal(path, ASKED)
    answer(target, {0: PROMPTS[0], 2: PROMPTS[2]}, ASKED, journal)
    with path.open("ab") as file:
        file.write(b'{"index": 3, "sample": 0, "new_i')  # the line that the kill cut off
    again = Journal(path, ASKED)
    answer(target, PROMPTS, ASKED, again)
    assert asked == [[PROMPTS[0], PROMPTS[2]], [*PROMPTS.values()]], "drawn together, as without the kill"
    whole = Journal(path, ASKED)
    assert whole.found == again.found and len(whole.found) == 4
    assert sorted(json.loads(line)["index"] for line in path.read_text().splitlines()[1:]) == [0, 2, 3, 7]


def test_several_sampled_answers_and_shares(target, tmp_path):
    asked = Asked("tiny", "digest", SamplingParams(temperature=1.5), max_new_tokens=8, per_prompt=3)
    journals = [Journal(tmp_path / f"{rank}.jsonl", asked) for rank in (0, 1)]
    for rank, journal in enumerate(journals):
        answer(target, PROMPTS, asked, journal, share=(rank, 2))
    found = list(examples_of(journals, PROMPTS))
    assert [len(journal.found) for journal in journals] == [6, 6] and len(found) == 12
    assert len({example.new_ids for example in found[:3]}) == 3, "other draws"


@pytest.mark.parametrize("other", [{"max_new_tokens": 7}, {"use": SamplingParams()}, {"target": "another"}], ids=str)
def test_answers_of_another_run_are_refused(tmp_path, other):
    Journal(tmp_path / "a.jsonl", ASKED)
    with pytest.raises(ValueError, match=f"another run, whose {next(iter(other))} is"):
        Journal(tmp_path / "a.jsonl", Asked(**vars(ASKED) | other))
    (tmp_path / "b.jsonl").write_text("nonsense\n")
    with pytest.raises(ValueError, match=r"b\.jsonl is no journal of answers"):
        Journal(tmp_path / "b.jsonl", ASKED)


def test_texts_are_learned_once_and_cut():
    one, two = Example((1, 2), (3, 4, 5)), Example((1, 2), (3, 4, 6))
    assert unique([one, two, one], 4) == [Example((1, 2), (3, 4))]
    assert unique([one], 2) == [], "nothing of the answer is left"
    assert token_counts([one, two], 7).tolist() == [0, 0, 0, 2, 2, 1, 1]
