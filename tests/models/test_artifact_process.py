"""The process that compiles passes in the background: it waits for idle cores, but not for ever."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from hf_speculative.models import artifacts
from tests.support import emulated_compiler, tiny


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no such priority")
def test_it_runs_while_cores_are_idle():
    """At a low priority, calls beside it took three to six times as long: a turn is longer than a pass."""
    with subprocess.Popen(["sleep", "60"], **artifacts.APART) as process:
        artifacts._give_way(process.pid, waits=True)
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
        assert os.getpgid(process.pid) == process.pid, "Ctrl-C leaves it alone"
        if sys.version_info >= (3, 11):  # Linux weighs sessions against each other (sched(7), autogroups)
            assert os.getsid(process.pid) == os.getsid(0)
        process.kill()


def test_it_does_not_wait_for_ever(tmp_path, monkeypatch, caplog):
    """Decoding without a pause leaves no core idle; a second process takes the place of the first."""
    emulated = emulated_compiler.install(tmp_path, monkeypatch)
    model, begun = tiny.llama(), []
    priorities = Mock()
    changed = {name: getattr(priorities, name) for name in ("setpriority", "sched_setscheduler")}
    monkeypatch.setattr(artifacts, "os", SimpleNamespace(**vars(os) | changed))

    def start(command, **kwargs):
        begun.append(Mock(pid=7, poll=Mock(return_value=None)))
        return begun[-1]

    monkeypatch.setattr(artifacts.subprocess, "Popen", start)
    for waits in (True, True, False, False):
        artifacts.start(model, waits=waits)
    assert len(begun) == 2 and not emulated.started
    begun[0].send_signal.assert_called_once_with(signal.SIGINT)
    begun[1].send_signal.assert_not_called()
    assert priorities.setpriority.call_args.args == (os.PRIO_PROCESS, 7, 10) and "since no core is idle" in caplog.text
