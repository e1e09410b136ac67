"""Ctrl-C while there is nothing to keep yet. Imports nothing but the standard library."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

#: exit status after Ctrl-C, as shells have it
STOPPED = 130


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Ctrl-C ends the process at once: for imports and loading.

    Raised inside an import, KeyboardInterrupt may be lost, or printed by a callback that cannot raise. torch takes it for a
    sign that numpy is missing.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, as in the background, or another library's
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(*_) -> None:
    # To the terminal itself, as a spinner that runs has taken `sys.stderr` and hidden the cursor.
    os.write(2, b"\r\x1b[2K\x1b[?25hstopped\n" if os.isatty(2) else b"stopped\n")
    os._exit(STOPPED)
