"""Passes compiled ahead of time, without a compiler: the traced module itself computes, on the constants that it is given."""

import copy
from itertools import chain
from types import SimpleNamespace

from torch import Tensor
from torch.func import functional_call

from hf_speculative.models import artifacts, execution, exported, pool
from hf_speculative.models.exported import check
from hf_speculative.models.pieces import Before
from hf_speculative.models.traced import HeadPass, TracedPass

#: torch keeps what is loaded for ever
_loaded: list[dict] = []


def begins_a_pass(module) -> bool:
    """A whole pass, or the first of the pieces of one."""
    return isinstance(module, TracedPass | Before)


class Function:
    """What a compiled function does, and the file that holds it, by the traced module on the constants it was given."""

    def __init__(self, compiler, module):
        self.compiler, self.module = compiler, module
        named = chain(module.named_parameters(), module.named_buffers())
        self.constants = {name.replace(".", "_"): name for name, _ in named}

    def function(self):
        return copy.copy(self)  # layers that share a file have constants of their own

    def close(self):
        pass

    def load_constants(self, constants):
        assert constants.keys() == {*self.constants.values()}
        self.given = constants
        _loaded.append(constants)

    def run(self, inputs):
        assert all(tensor.is_contiguous() for tensor in inputs)
        if not self.compiler.is_trying:
            self.compiler.runs += [tuple(inputs[0].shape)] if begins_a_pass(self.module) else []
            self.compiler.runs_of_heads += isinstance(self.module, HeadPass)
        found = functional_call(self.module, self.given, tuple(inputs))
        return [found] if isinstance(found, Tensor) else list(found)


class Emulated:
    """A compiler whose passes are the model's own, and see what a compiled one does: flat tensors, its own constants.

    Attributes:
        num_made: passes, of one file or of several.
        num_files: made.
        started: commands of processes that would make more.
    """

    def __init__(self):
        self.num_files, self.is_trying, self.started = 0, False, []
        self.num_made, self.runs, self.modules, self.runs_of_heads = 0, [], {}, 0

    def compile_to(self, path, module):
        self.num_files += 1
        self.num_made += begins_a_pass(module)
        path.write_text(str(self.num_files))
        self.modules[str(self.num_files)] = copy.deepcopy(module)

    def check(self, compiled, module, parts):
        """The trial of what was made; its passes are not counted."""
        self.is_trying = True
        try:
            check(compiled, module, parts)
        finally:
            self.is_trying = False

    def open_package(self, path):
        return Function(self, self.modules[path.read_text()])


def install(folder, monkeypatch) -> Emulated:
    """In place of torch's compiler, with `folder` for the files."""
    compiler = Emulated()
    monkeypatch.setenv(artifacts.FOLDER, str(folder))
    monkeypatch.setattr(exported, "compile_to", compiler.compile_to)
    monkeypatch.setattr(exported, "check", compiler.check)
    monkeypatch.setattr(exported, "CompiledPackage", compiler.open_package)

    def start(command, **kwargs):
        compiler.started.append(command)
        return SimpleNamespace(pid=-1)

    popen = SimpleNamespace(Popen=start, DEVNULL=None)
    monkeypatch.setattr(artifacts, "subprocess", popen)
    monkeypatch.setattr(artifacts, "_started", {})
    monkeypatch.setattr(artifacts, "_has_no_power_to_spare", lambda: False)
    monkeypatch.setattr(execution, "ENOUGH_SECONDS", 0.0)
    pool._kept.clear()
    return compiler
