import pytest
import tiny
import torch
import transformers


def pytest_report_header(config):
    return f"torch {torch.__version__}, transformers {transformers.__version__}"


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(1234)


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
