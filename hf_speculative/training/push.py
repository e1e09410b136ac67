"""Push a trained draft and its card to the Hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.utils import validate_repo_id

#: what only a run that goes on needs, and the texts that the target wrote for it
KEPT_HERE = ["answers.jsonl*", "checkpoints/*"]


@dataclass(frozen=True)
class Push:
    """Where a draft is uploaded to, a repository that is created if missing.

    Attributes:
        token: of the Hub; `None`: that of this machine.
        private: whether a new repository is; `None`: what the account has as its default.
    """

    repository: str
    token: str | None = None
    private: bool | None = None

    def check(self) -> None:
        """Raises, before anything is computed, where no draft could be uploaded at the end."""
        validate_repo_id(self.repository)
        with _told(f"`push_to_hub={self.repository!r}`", "log in with `hf auth login`, or leave it out"):
            HfApi(token=self.token).whoami()

    def __call__(self, folder: Path) -> None:
        by_hand = f"hf upload {self.repository} {folder} --exclude 'answers.jsonl*' 'checkpoints/*'"
        with _told(f"{folder} holds the whole draft, and was not uploaded to {self.repository}", by_hand):
            api = HfApi(token=self.token)
            api.create_repo(self.repository, private=self.private, exist_ok=True)
            api.upload_folder(
                repo_id=self.repository,
                folder_path=folder,
                ignore_patterns=KEPT_HERE,
                commit_message="A draft, trained by hf-speculative train",
            )


@contextmanager
def _told(what: str, way_out: str) -> Iterator[None]:
    """What the Hub refuses, with what it means here."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{what} ({error}): {way_out}.") from error
