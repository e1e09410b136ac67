"""The process that compiles passes in the background."""

import os
import subprocess
import sys

import pytest

from hf_speculative.models import artifacts


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no such priority")
def test_it_runs_while_cores_are_idle():
    """At a low priority, calls beside it took three to six times as long: a turn is longer than a pass."""
    with subprocess.Popen(["sleep", "60"], **artifacts.APART) as process:
        artifacts._give_way(process.pid)
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
        assert os.getpgid(process.pid) == process.pid, "Ctrl-C leaves it alone"
        if sys.version_info >= (3, 11):  # Linux weighs sessions against each other (sched(7), autogroups)
            assert os.getsid(process.pid) == os.getsid(0)
        process.kill()
