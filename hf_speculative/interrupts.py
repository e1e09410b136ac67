"""Ctrl-C while there is nothing to keep yet. Imports nothing but the standard library."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: exit status after Ctrl-C, as shells have it
STOPPED = 130


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Ctrl-C ends the process, for imports and for loading.

    Raised inside an import, KeyboardInterrupt may be lost, printed by a callback that cannot raise, or taken for a module that
    is missing, as torch takes it for numpy's.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, as in the background, or somebody else's
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(*_) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K\x1b[?25h")  # a spinner may have hidden the cursor
    print("stopped", file=sys.stderr, flush=True)
    os._exit(STOPPED)
