"""What is written for a user: regular files only, whole, and an error that names them."""

import errno
import os
from pathlib import Path

import pytest

import hf_speculative as hs
from hf_speculative.hub.export import export_generate
from hf_speculative.measuring import decoder
from hf_speculative.reports import files
from tests.support.command import run_command

ROWS = ["import os\n", "def main():\n", "class A:\n"]


@pytest.fixture
def evaluate(pair):
    def call(**options):
        target, draft, tokenizer = pair
        common = {"num_draft_tokens": [2], "max_new_tokens": 4, "progress": False}
        return hs.evaluate(target, draft, ROWS, tokenizer=tokenizer, **common | options)

    return call


@pytest.fixture
def pipe(tmp_path):
    """Neither a file nor a folder."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


DATA = ("eval", "--dataset", "org/name")


@pytest.mark.parametrize(
    "command, option",
    [(DATA, "--results"), (DATA, "--report"), (DATA, "--json"), (("bench",), "--report"), (("bench",), "--json")],
)
def test_commands_write_to_regular_files_only(pipe, command, option):
    result = run_command(*command, option, str(pipe))
    assert result.exit_code == 2 and f"{option} {pipe} is no regular file" in result.stderr
    assert pipe.is_fifo()


def test_so_does_python(pipe, evaluate, monkeypatch):
    monkeypatch.setattr(decoder.Decoder, "warm_up", lambda *args: pytest.fail("something ran"))
    with pytest.raises(ValueError, match=r"`results`: .*pipe is no regular file"):
        evaluate(results=pipe)
    with pytest.raises(ValueError, match="there is no folder"):
        evaluate(results=pipe.parent / "nowhere" / "out.jsonl")
    readme = pipe.parent / "README.md"
    pipe.rename(readme)
    with pytest.raises(ValueError, match=r"`folder`: .*README.md is no regular file"):
        export_generate(readme.parent)
    assert readme.is_fifo() and not (readme.parent / "custom_generate").exists()
    with pytest.raises(ValueError, match="no regular file"):
        files.write(readme, "text")


def test_a_link_stays_one_and_a_file_keeps_its_permissions(tmp_path):
    there, link = tmp_path / "there.txt", tmp_path / "link.txt"
    there.write_text("old")
    there.chmod(0o600)
    link.symlink_to(there)
    files.write(link, "new")
    assert link.is_symlink() and there.read_text() == "new" and there.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.txt", "there.txt"]


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(beside, content):
        beside.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"No space left on device: the file is left as it was: '.*report\.html'"):
        files.write(path, "new")
    assert path.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["report.html"]


class NearlyFull:
    """A file on a disk with room for some bytes."""

    def __init__(self, file, room):
        self.file, self.room, self.name, self.close = file, room, file.name, file.close

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(data[: self.room])
        self.room -= written
        return written


def test_results_of_before_a_disk_was_full_are_kept(tmp_path, evaluate, monkeypatch):
    path, append, nearly_full = tmp_path / "out.jsonl", files.append, []
    whole = evaluate(results=path)
    room = len(path.read_bytes().rpartition(b"\n")[0]) // 2
    path.unlink()

    def fills_up(file, *args):
        nearly_full[:] = nearly_full or [NearlyFull(file, room)]
        append(nearly_full[0], *args)

    with monkeypatch.context() as patch:
        patch.setattr(files, "append", fills_up)
        with pytest.raises(OSError, match=r"the file has all that was decoded before.*once there is room.*out\.jsonl"):
            evaluate(results=path)
    assert not path.read_bytes().endswith(b"\n"), "a line that had no room"
    assert 0 < sum(map(len, hs.Evaluation.load(path).calls.values())) < 6
    texts = [{row.text for row in one.rows(one.settings[1]).values()} for one in (whole, evaluate(results=path))]
    assert texts[0] == texts[1]
