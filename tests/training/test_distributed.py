"""Training in two processes."""

import pytest

from tests.support import two_processes


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("store",)])
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
