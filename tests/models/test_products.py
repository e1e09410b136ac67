"""Products with packed weights: those of the plain weight, by each kernel, and the same bits for any number of rows."""

import pytest
import torch
from torch.nn import functional

from hf_speculative.models import products
from hf_speculative.models.folder import FOLDER

pytestmark = pytest.mark.skipif(not products.dtypes(), reason="nothing can be packed on this machine")
KERNELS = [pytest.param(is_ours, id="ours" if is_ours else "oneDNN") for is_ours in (True, False)]


@pytest.fixture
def kernel(request, monkeypatch):
    """One of the kernels alone, with the dtypes that it takes."""
    if request.param and not products.has_kernel():
        pytest.skip("the kernel cannot be built on this machine")
    monkeypatch.setattr(products, "has_kernel", lambda: request.param)
    monkeypatch.setattr(products, "has_onednn_bf16", lambda: False)
    return products.dtypes()


@pytest.mark.parametrize("kernel", KERNELS, indirect=True)
@pytest.mark.parametrize("shape", [(1, 3), (61, 32), (960, 577)])
def test_they_are_those_of_the_plain_weight(kernel, shape):
    for dtype in kernel:
        weight, bias = torch.randn(shape).to(dtype), torch.randn(shape[0]).to(dtype)
        packed = products.packed(weight)
        assert products.unpacked(packed, shape[0]).equal(weight)
        for num_rows in (0, 1, 2, 5, 6, 7, 12, 13, 40):
            input = torch.randn(2, num_rows, shape[1]).to(dtype).transpose(0, 1)
            for one in (None, bias):
                expected = functional.linear(input.double(), weight.double(), None if one is None else one.double())
                found = products.linear(input, packed, one, shape[0])
                assert found.dtype == dtype
                torch.testing.assert_close(found.double(), expected, atol=shape[1] * torch.finfo(dtype).eps, rtol=1e-2)


@pytest.mark.parametrize("kernel", KERNELS[:1], indirect=True)
def test_a_row_gives_the_same_bits_beside_any_others(kernel):
    """Plain products, MKL's, do not: the negative control."""
    differ = 0
    for dtype in kernel:
        weight, rows = torch.randn(200, 333).to(dtype), torch.randn(40, 333).to(dtype)
        packed = products.packed(weight)
        alone = torch.cat([products.linear(row[None], packed, None, 200) for row in rows])
        for num in (2, 5, 8, 13, 31, 40):
            assert products.linear(rows[:num], packed, None, 200).equal(alone[:num])
        differ += not functional.linear(rows, weight).equal(
            torch.cat([functional.linear(row[None], weight) for row in rows])
        )
    assert differ


def test_special_numbers(monkeypatch):
    monkeypatch.setattr(products, "has_onednn_bf16", lambda: False)
    for dtype in products.dtypes():
        weight, input = torch.eye(20).to(dtype), torch.zeros(3, 20).to(dtype)
        input[0, 4], input[1, 3] = torch.inf, torch.nan
        found = products.linear(input, products.packed(weight), None, 20)
        assert found[0, 4] == torch.inf
        assert found[1].isnan().all() and found[2].eq(0).all()


class TestWithoutTheKernel:
    @pytest.fixture(autouse=True)
    def empty_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv(FOLDER, str(tmp_path))

    def test_a_compiler_that_fails_is_not_asked_again(self, monkeypatch, caplog):
        monkeypatch.setenv("CXX", "false")
        assert not products._load() and "Delete" in caplog.text and products.kernel_path().with_suffix(".txt").exists()
        monkeypatch.setattr(products, "_build", lambda path: pytest.fail("it was asked again"))
        assert not products._load()

    def test_no_compiler(self, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        assert not products._load() and not products.kernel_path().with_suffix(".txt").exists()

    def test_a_damaged_file_is_removed(self, caplog):
        products.kernel_path().write_text("nothing to load")
        assert not products._load() and "Delete" in caplog.text and not products.kernel_path().exists()

    def test_a_folder_that_cannot_be_made(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv(FOLDER, str(tmp_path / "file" / "below"))
        assert not products._load()
