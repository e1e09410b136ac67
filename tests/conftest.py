import os
from weakref import WeakKeyDictionary

import pytest
import torch
import transformers

import hf_speculative as hs
from hf_speculative.measuring import plan
from hf_speculative.models import artifacts, model_state
from hf_speculative.schedules import adaptive
from hf_speculative.types import Costs
from tests.support import tiny
from tests.support.emulated_compiler import install
from tests.support.execution import fix_costs

if "PYTEST_XDIST_WORKER" in os.environ:
    # A worker a core: threads of their own would only wait for each other, and so would those of processes that tests start.
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


def pytest_report_header(config):
    return f"torch {torch.__version__}, transformers {transformers.__version__}"


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(1234)


@pytest.fixture(scope="session", autouse=True)
def short_texts():
    """Figures of the texts of tests, which are short, are told; what they have to rest on has a test of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "FEWEST_TOKENS", 0)
        yield


@pytest.fixture(autouse=True)
def fixed_costs(request, monkeypatch):
    """The default draft length goes by these costs, and no tree is tried; tests marked `measures` ask the clock."""
    if request.node.get_closest_marker("measures") is None:
        fix_costs(monkeypatch, Costs(0.05, 0.05))
        monkeypatch.setattr(adaptive, "RESCUED", 0.0)
        monkeypatch.setattr(adaptive, "FIRST_NODES", 64.0)


@pytest.fixture(autouse=True)
def nothing_optimized(monkeypatch):
    """Unless a test says how passes run: which are faster depends on the machine."""
    monkeypatch.setenv(artifacts.FOLDER, artifacts.OFF)


@pytest.fixture
def emulated(tmp_path, monkeypatch):
    """In place of the compiler, which takes half a minute."""
    return install(tmp_path / "passes", monkeypatch)


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch):
    """Of models that tests share: after calls whose drafts did not pay, later ones might not draft."""
    monkeypatch.setattr(model_state, "_kept", WeakKeyDictionary())


@pytest.fixture(scope="module")
def pair():
    return hs.embedded_pair()


@pytest.fixture(scope="session")
def target():
    return tiny.llama()


@pytest.fixture(scope="session")
def draft(target):
    """Agrees with `target` about some tokens."""
    return tiny.noisy_copy(target)


@pytest.fixture(scope="session")
def unrelated():
    """A draft that agrees about nothing."""
    return tiny.llama(seed=99, layers=1)


@pytest.fixture
def twin(target):
    """A draft that is always right, so that every block is accepted whole."""
    return tiny.noisy_copy(target, noise=0)
