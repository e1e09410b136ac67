"""Our kernels: what torch computes, and the same bits for a row beside any others."""

import time

import psutil
import pytest
import torch
from torch.nn import functional

from hf_speculative.models import native
from hf_speculative.models.described import FOLDER
from hf_speculative.models.native import WIDE

has_kernel = pytest.mark.skipif(not native.has_kernel(), reason="the kernel cannot be built on this machine")
#: of a result, once: sums run in float32
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2**-8}
dtypes = pytest.mark.parametrize("dtype", native.DTYPES)


@has_kernel
@dtypes
@pytest.mark.parametrize("shape", [(1, 3), (61, 32), (960, 577), (48, 64)])
def test_they_are_those_of_torch(dtype, shape):
    weight, bias = torch.randn(shape).to(dtype), torch.randn(shape[0]).to(dtype)
    for num_rows in (0, 1, 2, 3, 4, 5, 6, 7, 13, 40, WIDE):
        input = torch.randn(2, num_rows, shape[1]).to(dtype).transpose(0, 1)
        for one in (None, bias):
            expected = functional.linear(input.double(), weight.double(), None if one is None else one.double())
            found = native.linear(input, weight, one)
            assert found.dtype == dtype
            # Of more rows torch computes, and with AVX-512 in bfloat16 rounds before it adds the bias.
            if input[..., 0].numel() <= WIDE or not found.equal(functional.linear(input, weight, one)):
                torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=ROUNDING[dtype])


@has_kernel
def test_a_row_gives_the_same_bits_beside_any_others():
    """Products of torch's, MKL's, do not: the negative control."""
    differ = 0
    for dtype in native.DTYPES:
        weight, rows = torch.randn(211, 333).to(dtype), torch.randn(WIDE, 333).to(dtype)
        alone = torch.cat([native.linear(row[None], weight) for row in rows])
        for num in (2, 3, 4, 5, 6, 8, 13, 31, WIDE):
            assert native.linear(rows[:num], weight).equal(alone[:num])
        by_row = torch.cat([functional.linear(row[None], weight) for row in rows])
        differ += not functional.linear(rows, weight).equal(by_row)
    assert differ


@has_kernel
@dtypes
def test_special_numbers(dtype):
    weight, input = torch.eye(20).to(dtype), torch.zeros(3, 20).to(dtype)
    input[0, 4], input[1, 3] = torch.inf, torch.nan
    found = native.linear(input, weight)
    assert found[0, 4] == torch.inf
    assert found[1].isnan().all() and found[2].eq(0).all()


SHAPES = [(1, 1, 1, 1, 16, 16), (2, 3, 5, 7, 64, 64), (3, 2, 9, 33, 80, 48), (2, 2, 27, 300, 128, 128)]


def drawn(dtype, num_rows, num_heads, num_queries, num_slots, size, width):
    """Queries, and keys and values in a cache with room for more."""
    query = torch.randn(num_rows, num_heads, num_queries, size)
    key, value = (torch.randn(num_rows, num_heads, num_slots + 5, n) for n in (size, width))
    return query.to(dtype), key.to(dtype)[:, :, :num_slots], value.to(dtype)[:, :, :num_slots]


@has_kernel
@dtypes
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_that_of_torch(dtype, shape):
    query, key, value = drawn(dtype, *shape)
    num_rows, num_heads, num_queries, num_slots, *_ = shape
    for hides in (None, (num_rows, 1, num_queries), (1, num_heads, num_queries), (num_rows, 1, 1)):
        mask = None
        if hides is not None:
            hidden = torch.rand(*hides, num_slots) < 0.4
            hidden[..., 0] = False
            mask = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf).to(dtype)
        exact = (None if one is None else one.double() for one in (query, key, value, mask))
        expected = functional.scaled_dot_product_attention(*exact, scale=0.2)
        found = native.attention(query, key, value, mask, 0.2)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=ROUNDING[dtype])


def attention_of_torch(query, key, value, mask, scale):
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


@has_kernel
def test_attention_has_the_same_bits_beside_others_and_before_slots_that_are_hidden():
    """Torch's has not: the negative control."""
    differ = 0
    for dtype in native.DTYPES:
        query, key, value = drawn(dtype, 4, 3, 27, 100, 64, 64)
        mask = torch.zeros(4, 1, 27, 100, dtype=dtype)
        mask[..., 61:] = -torch.inf
        whole, of_torch = (one(query, key, value, mask, 0.2) for one in (native.attention, attention_of_torch))
        for row, num, end in ((0, 1, 61), (1, 5, 64), (3, 9, 80)):
            part = slice(row, row + 1), slice(None), slice(num)
            given = query[part], key[row : row + 1, :, :end], value[row : row + 1, :, :end], mask[part][..., :end], 0.2
            assert native.attention(*given).equal(whole[part])
            differ += not attention_of_torch(*given).equal(of_torch[part])
    assert differ


@has_kernel
@dtypes
def test_attention_of_rows_of_different_lengths(dtype):
    """The first slots of a row may be hidden as well, behind a window, and all of them, of queries that are filler."""
    num_rows, num_queries, num_slots = 5, 3, 400
    query, key, value = drawn(dtype, num_rows, 2, num_queries, num_slots, 64, 64)
    mask = torch.full((num_rows, 1, num_queries, num_slots), -torch.inf, dtype=dtype)
    for row, (first, end) in enumerate(((0, 400), (0, 1), (47, 49), (301, 377), (0, 0))):
        for number in range(num_queries):
            mask[row, :, number, first : max(0, end - number)] = 0
    found = native.attention(query, key, value, mask, 0.2)
    exact = attention_of_torch(query.double(), key.double(), value.double(), mask.double(), 0.2).nan_to_num()
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=ROUNDING[dtype])
    for row in range(num_rows):
        own = slice(row, row + 1)
        assert native.attention(query[own], key[own], value[own], mask[own], 0.2).equal(found[own])


@has_kernel
def test_attention_takes_the_time_of_what_rows_see():
    query, key, value = drawn(torch.float32, 8, 4, 4, 8192, 64, 64)

    def seconds(*lengths: int) -> float:
        mask = torch.full((8, 1, 4, 8192), -torch.inf)
        for row, length in enumerate(lengths):
            mask[row, ..., :length] = 0
        times = []
        for _ in range(5):
            start = time.perf_counter()
            native.attention(query, key, value, mask, 0.2)
            times.append(time.perf_counter() - start)
        return min(times)

    whole = seconds(*[8192] * 8)
    assert seconds(8192, *[64] * 7) < 0.5 * whole
    assert seconds(*[64] * 7, 8192) < 0.5 * whole


@has_kernel
def test_wide_passes_are_torchs():
    query, key, value = drawn(torch.float32, 1, 2, WIDE + 1, 40, 64, 64)
    mask = torch.zeros(1, 1, WIDE + 1, 40)
    assert native.attention(query, key, value, mask, 0.2).equal(attention_of_torch(query, key, value, mask, 0.2))
    weight, bias = torch.randn(48, 64), torch.randn(48)
    assert native.linear(query[0, 0], weight, bias).equal(functional.linear(query[0, 0], weight, bias))


@has_kernel
@pytest.mark.parametrize("num_queries, dtype", [(2, torch.bool), (WIDE + 1, torch.float32)])
def test_attention_lies_as_compiled_passes_expect(num_queries, dtype):
    """Contiguous, whatever torch's attention gives of queries that are not."""
    query = torch.randn(1, num_queries, 3, 64).transpose(1, 2)
    _, key, value = drawn(torch.float32, 1, 3, 1, 40, 64, 64)
    mask = torch.ones(1, 1, num_queries, 40, dtype=torch.bool)
    given = query, key, value, mask if dtype == torch.bool else torch.zeros(mask.shape), 0.2
    assert native.attention(*given).is_contiguous() and not attention_of_torch(*given).is_contiguous()


@has_kernel
def test_attention_to_nothing_and_to_what_is_no_number():
    query, key, value = drawn(torch.float32, 1, 1, 2, 3, 16, 16)
    assert native.attention(query, key, value, torch.full((1, 1, 2, 3), -torch.inf), 1.0).eq(0).all()
    key = key.clone()
    key[..., 1, 0] = torch.nan
    assert native.attention(query, key, value, None, 1.0).isnan().all()


class TestWithoutTheKernel:
    @pytest.fixture(autouse=True)
    def empty_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv(FOLDER, str(tmp_path))

    def test_a_compiler_that_fails_is_not_asked_again(self, monkeypatch, caplog):
        monkeypatch.setenv("CXX", "false")
        assert "delete it" in native._load()
        assert "delete it" in caplog.text and native.kernel_path().with_suffix(".txt").exists()
        monkeypatch.setattr(native, "_build", lambda path: pytest.fail("it was asked again"))
        assert "delete it" in native._load()

    def test_no_compiler(self, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        assert "take a C++ compiler" in native._load() and not native.kernel_path().with_suffix(".txt").exists()

    def test_a_damaged_file_is_removed(self):
        native.kernel_path().write_text("nothing to load")
        assert "delete it" in native._load() and not native.kernel_path().exists()

    def test_a_folder_that_cannot_be_made(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv(FOLDER, str(tmp_path / "file" / "below"))
        assert "cannot be built" in native._load()


@has_kernel
def test_attention_to_many_slots_keeps_no_memory():
    query, key, value = drawn(torch.float32, 1, 2, WIDE, 100_000, 64, 64)
    query = torch.randn(1, 8, WIDE, 64)
    before = psutil.Process().memory_info().rss
    native.attention(query[:, :2], key, value, None, 0.1)
    assert psutil.Process().memory_info().rss - before < 5e7  # scores take twice that
