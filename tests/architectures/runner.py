"""Examines many types, each in a process of its own with limits on time and memory."""

import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

import torch

from .check import Result, examine, silence


def run(jobs: list[tuple[str, str]], num_processes: int, seconds: float, gigabytes: float) -> Iterator[Result]:
    """Results as they come. Forked: a type that crashes or hangs takes nothing with it, and torch is imported once."""
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    waiting, running = list(reversed(jobs)), {}
    while waiting or running:
        while waiting and len(running) < num_processes:
            receiver, sender = context.Pipe(duplex=False)
            job = waiting.pop()
            process = context.Process(target=_work, args=(sender, job, gigabytes), daemon=True)
            process.start()
            sender.close()
            running[receiver] = (process, job, time.monotonic() + seconds)
        nearest = min(deadline for _, _, deadline in running.values())
        ready = wait(list(running), timeout=max(0.0, nearest - time.monotonic()))
        late = [receiver for receiver in running if receiver not in ready and time.monotonic() > running[receiver][2]]
        for receiver in [*ready, *late]:
            process, job, _ = running.pop(receiver)
            yield _result(receiver, process, job, seconds if receiver in late else None)


def _work(sender: Connection, job: tuple[str, str], gigabytes: float) -> None:
    limit = int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # some models print
    silence()
    sender.send(examine(*job))


def _result(receiver: Connection, process, job: tuple[str, str], late: float | None) -> Result:
    if late is not None:
        process.kill()
        process.join()
        return Result(*job, "raised", f"took longer than {late:.0f} s")
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        return Result(*job, "raised", f"the process ended with exit code {process.exitcode}")
