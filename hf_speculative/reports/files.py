"""Files that are written for a user: only regular ones, each whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from safetensors import SafetensorError

#: half of a surrogate pair, which no UTF-8 file can hold, becomes the escape that JSON has for it
ERRORS = "backslashreplace"


def check_output(option: str, path: str | os.PathLike, makes_folders: bool = False) -> None:
    """Whether a file can be where `option` wants it, before anything else is done.

    Args:
        makes_folders: the folder it lies in is made where it is missing.

    Raises:
        ValueError: a folder, a device or a pipe, which writing would replace, or a file in a folder that is not there.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{option} {path} is a folder: name a file.")
    if path.exists() and not path.is_file():
        raise ValueError(f"{option} {path} is no regular file, and no other is written to: name another.")
    if path.parent.is_dir():
        try:
            with TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise ValueError(f"{option} {path} cannot be written ({error.strerror}): name another.") from error
    elif not makes_folders or path.parent.exists():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}.")


def make_folder(option: str, folder: Path) -> None:
    """Make a folder, and those around it, where they are missing.

    Raises:
        ValueError: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{option}: no folder can be made there ({error.strerror}): name another place.") from error


def write(path: str | os.PathLike, content: str | bytes) -> None:
    """The whole file in one step: a kill, or a full disk, leaves the old one. A link stays one.

    Raises:
        ValueError: there can be no file of that name.
        OSError: naming the file.
    """
    check_output("the file", path)
    place = Path(os.path.realpath(path))
    beside = place.with_name(f"{place.name}.{os.getpid()}")  # another process may write the same file
    with named(path, "the file is left as it was"):
        try:
            beside.write_bytes(content.encode(errors=ERRORS) if isinstance(content, str) else content)
            if place.exists():
                shutil.copymode(place, beside)
            os.replace(beside, place)
        finally:
            beside.unlink(missing_ok=True)


def append(file: IO[bytes], line: str, kept: str) -> None:
    """Add a whole line to an unbuffered file, also where a disk that is nearly full takes a part at a time."""
    with named(file.name, kept):
        left = memoryview(line.encode(errors=ERRORS))
        while left:
            left = left[file.write(left) :]


@contextmanager
def named(path: str | os.PathLike, kept: str) -> Iterator[None]:
    """An error of the system, such as a full disk, says which file it is about, and what was kept."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(None, f"{error}: {kept}", str(path)) from error
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {kept}", str(path)) from error
