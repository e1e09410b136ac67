"""The command as a process of its own: what it imports, and what Ctrl-C does to it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import hf_speculative as hs
from hf_speculative.cli import app
from tests.support.cases import STRIDE, slow_but

COMMANDS = [command.name for command in app.registered_commands]
#: runs the command, where Ctrl-C may have been ignored by whoever started the tests
START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
{before}
sys.argv[:] = ["hf-speculative", *sys.argv[1:]]
from hf_speculative.__main__ import main
main()
"""
TELL_IMPORTS = """
import atexit
atexit.register(lambda: print("IMPORTED", *sorted({name.split(".")[0] for name in sys.modules})))
"""
#: adds a letter to a file for each call that is measured
NOTE_CALLS = """
from hf_speculative.measuring.journal import Journal
add = Journal.add
Journal.add = lambda self, entry: (add(self, entry), open({path!r}, "a").write("x"))
"""
#: says when the command comes to import torch, and stays there
STAY_IN_IMPORT = """
import time
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("importing", flush=True)
            time.sleep(600)
sys.meta_path.insert(0, Finder())
"""
HEAVY = {"torch", "transformers", "datasets", "tokenizers", "huggingface_hub", "matplotlib", "numpy"}


def start(*args, before="", **kwargs):
    command = [sys.executable, "-c", START.format(before=before), *map(str, args)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, **kwargs)


def imported_by(code, **kwargs):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stderr
    *output, names = done.stdout.splitlines()
    return output, set(names.split()[1:])


def test_help_and_version_import_nothing_heavy():
    """One command after the other in one process, which ends as the last one does."""
    commands = [["--version"], *([name, "--help"] for name in COMMANDS)]
    before = f"""
from hf_speculative.__main__ import main
for args in {commands}:
    sys.argv[1:] = args
    try:
        main()
    except SystemExit as done:
        assert not done.code, args
sys.argv[1:] = ["--help"]
"""
    output, imported = imported_by("import sys" + START.format(before=before + TELL_IMPORTS))
    assert len(output) > 10 * len(commands) and not imported & HEAVY


def test_completion_imports_nothing_heavy():
    asked = {"_HF_SPECULATIVE_COMPLETE": "complete_bash", "COMP_WORDS": "hf-speculative ge", "COMP_CWORD": "1"}
    output, imported = imported_by("import sys" + START.format(before=TELL_IMPORTS), env=os.environ | asked)
    assert output == ["generate"] and not imported & HEAVY


def test_the_package_imports_nothing_heavy():
    _, imported = imported_by(f"import sys, hf_speculative\nassert 'generate' in dir(hf_speculative){TELL_IMPORTS}")
    assert not imported & HEAVY


@pytest.mark.slow
def test_each_public_name_may_be_the_first_one_asked_for():
    script = f"""
import os, datasets, torch, hf_speculative
from transformers import AutoTokenizer, GenerationMixin, PreTrainedModel, Trainer  # once, as they take long
for name in {hs.__all__[::STRIDE]}:
    if not (child := os.fork()):
        getattr(hf_speculative, name)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""
    imported_by(script + TELL_IMPORTS.replace("\n", "\nimport sys\n", 1))


def stopped(process, is_ready):
    """Output and messages of a process that got SIGINT once `is_ready()`, what that has read left out."""
    with process, ThreadPoolExecutor(1) as reader:
        messages = reader.submit(process.stderr.read)
        try:
            given_up = time.monotonic() + 300
            while not is_ready():
                assert time.monotonic() < given_up
                assert process.poll() is None, (process.stdout.read(), messages.result())
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            stuck = threading.Timer(300, process.kill)
            stuck.start()
            # not `communicate`, which would pass over what `readline` has read ahead, half a character among it
            output, messages = process.stdout.read(), messages.result()
            process.wait()
            stuck.cancel()
        finally:
            process.kill()
    assert process.returncode == 130, (output, messages)
    assert "Traceback" not in output + messages and "KeyboardInterrupt" not in output + messages
    return output, messages


@pytest.mark.parametrize("command", slow_but(COMMANDS, "generate"))
def test_ctrl_c_while_it_imports(command, tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("a\n")
    output = tmp_path / "out"
    args = {"generate": ["x"], "eval": ["--dataset", data], "train": ["--data", data], "export": ["head", output]}
    args |= {"export-generate": [output], "card": [tmp_path / "eval.jsonl"], "audit": ["embedded", data, data]}
    process = start(command, *args.get(command, ()), before=STAY_IN_IMPORT)
    output, messages = stopped(process, lambda: process.stdout.readline() == "importing\n")
    assert not output and messages.strip() == "stopped"


@pytest.mark.slow
def test_ctrl_c_in_generate_shows_what_there_is(tmp_path):
    prompts, noted = (f"x = {i}" for i in range(2000)), tmp_path / "noted"
    process = start("generate", *prompts, "--json", "--max-new-tokens", 8, before=NOTE_CALLS.format(path=str(noted)))
    output, messages = stopped(process, lambda: noted.exists() and noted.stat().st_size > 4)
    assert json.loads(output.splitlines()[-1])["total"]["num_prompts"] >= 1 and "of 2000 prompts" in messages


@pytest.mark.release
def test_ctrl_c_in_bench_keeps_what_was_measured(tmp_path):
    sizes, figures, results = ",".join(map(str, range(1, 200))), tmp_path / "bench.json", tmp_path / "results"
    options = ("--batch", sizes, "--new-tokens", 4, "--draft-tokens", 2, "--repeats", 2, "--context", 8)
    process = start("bench", "--methods", "draft", *options, "--json", figures, "--results", results)
    _, messages = stopped(process, lambda: (results / "code-8-t0-c2.jsonl").exists())
    first, *_ = json.loads(figures.read_text())["cells"]
    assert first["num_prompts"] == first["num_rows"] == 1 and "what was measured so far" in messages


@pytest.mark.release
def test_ctrl_c_in_eval_keeps_the_calls(tmp_path):
    data, results = tmp_path / "p.txt", tmp_path / "eval.jsonl"
    data.write_text("".join(f"x = {i}\n" for i in range(5000)))
    process = start("eval", "--dataset", data, "--results", results, "--max-new-tokens", 4, "--num-draft-tokens", 2)
    output, messages = stopped(process, lambda: results.exists() and '{"call"' in results.read_text())
    assert "Unfinished" in output and "continues from there" in messages
