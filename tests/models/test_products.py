"""The kernel of linear layers: torch's products, and the same bits for any number of rows."""

import pytest
import torch
from torch.nn import functional

from hf_speculative.models import products
from hf_speculative.models.folder import FOLDER

has_kernel = pytest.mark.skipif(not products.has_kernel(), reason="the kernel cannot be built on this machine")
dtypes = pytest.mark.parametrize("dtype", products.DTYPES)
#: rows from which on torch multiplies
WIDE = 128


@has_kernel
@dtypes
@pytest.mark.parametrize("shape", [(1, 3), (61, 32), (960, 577), (48, 64)])
def test_they_are_those_of_torch(dtype, shape):
    weight, bias = torch.randn(shape).to(dtype), torch.randn(shape[0]).to(dtype)
    for num_rows in (0, 1, 2, 3, 4, 5, 6, 7, 13, 40, WIDE):
        input = torch.randn(2, num_rows, shape[1]).to(dtype).transpose(0, 1)
        for one in (None, bias):
            expected = functional.linear(input.double(), weight.double(), None if one is None else one.double())
            found = products.linear(input, weight, one)
            assert found.dtype == dtype
            torch.testing.assert_close(found.double(), expected, atol=shape[1] * torch.finfo(dtype).eps, rtol=1e-2)


@has_kernel
def test_a_row_gives_the_same_bits_beside_any_others():
    """Products of torch's, MKL's, do not: the negative control."""
    differ = 0
    for dtype in products.DTYPES:
        weight, rows = torch.randn(211, 333).to(dtype), torch.randn(WIDE, 333).to(dtype)
        alone = torch.cat([products.linear(row[None], weight) for row in rows])
        for num in (2, 3, 4, 5, 6, 8, 13, 31, WIDE):
            assert products.linear(rows[:num], weight).equal(alone[:num])
        differ += not functional.linear(rows, weight).equal(
            torch.cat([functional.linear(row[None], weight) for row in rows])
        )
    assert differ


@has_kernel
@dtypes
def test_special_numbers(dtype):
    weight, input = torch.eye(20).to(dtype), torch.zeros(3, 20).to(dtype)
    input[0, 4], input[1, 3] = torch.inf, torch.nan
    found = products.linear(input, weight)
    assert found[0, 4] == torch.inf
    assert found[1].isnan().all() and found[2].eq(0).all()


class TestWithoutTheKernel:
    @pytest.fixture(autouse=True)
    def empty_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv(FOLDER, str(tmp_path))

    def test_a_compiler_that_fails_is_not_asked_again(self, monkeypatch, caplog):
        monkeypatch.setenv("CXX", "false")
        assert "delete it" in products._load()
        assert "delete it" in caplog.text and products.kernel_path().with_suffix(".txt").exists()
        monkeypatch.setattr(products, "_build", lambda path: pytest.fail("it was asked again"))
        assert "delete it" in products._load()

    def test_no_compiler(self, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        assert "takes a C++ compiler" in products._load() and not products.kernel_path().with_suffix(".txt").exists()

    def test_a_damaged_file_is_removed(self):
        products.kernel_path().write_text("nothing to load")
        assert "delete it" in products._load() and not products.kernel_path().exists()

    def test_a_folder_that_cannot_be_made(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv(FOLDER, str(tmp_path / "file" / "below"))
        assert "cannot be built" in products._load()
