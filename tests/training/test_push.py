"""A trained draft goes to the Hub, with a stand-in for it."""

import pytest
from huggingface_hub.errors import LocalTokenNotFoundError

import hf_speculative as hs
from hf_speculative.training import Push, Settings, push, train
from tests.support import tiny

PROMPTS = [{"prompt": [4 + i, 5, 6]} for i in range(5)]
SETTINGS = Settings(head="layers:1", steps=1, num_evaluations=1, batch_size=2, max_new_tokens=4, held_out=1)


@pytest.fixture
def calls(monkeypatch):
    """What the Hub is asked."""
    calls = []

    class Api:
        def __init__(self, token=None):
            calls.append(("token", token))

        def whoami(self):
            calls.append("whoami")

        def create_repo(self, name, private, exist_ok):
            calls.append(("create", name, private, exist_ok))

        def upload_folder(self, repo_id, folder_path, ignore_patterns, commit_message):
            calls.append(("upload", repo_id, folder_path, ignore_patterns))

    monkeypatch.setattr(push, "HfApi", Api)
    return calls


def run(folder, **given):
    tokenizer = hs.embedded_pair()[2]
    return train(tiny.llama(), PROMPTS, folder, SETTINGS, tokenizer=tokenizer, push=Push("org/draft", **given))


def test_draft_and_card_are_uploaded_at_the_end(calls, tmp_path):
    result = run(tmp_path / "out", token="secret", private=True)
    ignored = ["answers.jsonl*", "checkpoints/*"]
    assert calls == [
        *(("token", "secret"), "whoami", ("token", "secret")),
        ("create", "org/draft", True, True),
        ("upload", "org/draft", tmp_path / "out", ignored),
    ]
    assert result.repository == "org/draft"
    card = (tmp_path / "out" / "README.md").read_text()
    assert "draft_model='org/draft'" in card and str(tmp_path) not in card.split("```sh")[0]


def test_who_cannot_upload_hears_of_it_before_anything_is_computed(calls, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="a/b/c"):
        Push("a/b/c").check()

    def refused(self):
        raise LocalTokenNotFoundError("no token")

    monkeypatch.setattr(push.HfApi, "whoami", refused)
    with pytest.raises(OSError, match=r"`push_to_hub='org/draft'` \(no token\): log in with `hf auth login`"):
        run(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_draft_that_was_not_uploaded_is_kept(calls, tmp_path, monkeypatch):
    def broken(self, **kwargs):
        raise OSError("connection lost")

    monkeypatch.setattr(push.HfApi, "upload_folder", broken)
    with pytest.raises(
        OSError, match=r"holds the whole draft, and was not uploaded .*connection lost.*hf upload org/draft"
    ):
        run(tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists() and (tmp_path / "out" / "README.md").exists()
