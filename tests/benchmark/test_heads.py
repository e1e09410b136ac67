"""Heads of random weights in the benchmark: kept by lot, of the size they say, and counted like any other draft."""

import pytest
import torch

import hf_speculative as hs
from hf_speculative import benchmark
from hf_speculative.benchmark import fixtures, heads, methods
from hf_speculative.models.packed_layers import dtypes
from hf_speculative.models.packing import are_packed
from hf_speculative.models.traced import HeadPass
from hf_speculative.types import Draft
from tests.support import tiny
from tests.support.emulated_compiler import install


class Argmax:
    @staticmethod
    def categorical(probs):
        return probs.argmax(-1)


@pytest.mark.parametrize("chance", [0.0, 0.7, 1.0])
def test_tokens_are_kept_by_lot(chance):
    draft = Draft(torch.randint(9, (4000, 3)), None, torch.tensor([3, 2] * 2000))
    probs = torch.rand(4000, 4, 9)
    verdict = heads.KeptByLot(chance)(draft, probs, Argmax())
    num_kept = verdict.num_accepted
    assert (num_kept <= draft.num_tokens).all()
    for position in (1, 2):
        assert (num_kept >= position).float().mean().item() == pytest.approx(chance**position, abs=0.03)
    expected = probs[torch.arange(4000), num_kept].argmax(-1)
    assert torch.equal(verdict.next_token, expected) and not heads.KeptByLot.lossless


def test_the_methods_are_those_that_can_be_made():
    assert set(methods.HEADS) == set(heads.HEADS)
    assert {f"head-{kind}" for kind in heads.HEADS} <= set(methods.METHODS)


@pytest.mark.skipif(not dtypes(), reason="nothing can be packed on this machine")
def test_on_packed_weights_the_head_has_some_too(pair, tmp_path, monkeypatch):
    """Those of a copy, for the head is measured on plain weights as well."""
    emulated = install(tmp_path, monkeypatch)
    monkeypatch.setattr(fixtures, "_made", {})  # and leaves nothing to other tests
    cells = [benchmark.Cell(acceptance=1.0, context=16)]
    report = benchmark.run(pair, cells, methods=["head-eagle3", "head-eagle3-packed"], num_new_tokens=12, repeats=1)
    assert not report.failures and emulated.runs_of_heads
    packed = [module for module, layout in emulated.modules.values() if isinstance(module, HeadPass) and layout]
    assert len(packed) == 1 and not are_packed(pair.head("eagle3"))


@pytest.mark.parametrize("kind", heads.HEADS)
def test_a_head_is_measured_like_any_other_draft(pair, kind, ticking):
    name = f"head-{kind}"
    cells = [
        benchmark.Cell(acceptance=0.6, context=16, batch=batch, temperature=t) for batch, t in ((1, 0.0), (2, 1.0))
    ]
    report = benchmark.run(pair, cells, methods=[name], num_new_tokens=24, repeats=2)
    assert not report.failures
    for cell in report.cells:
        own = cell.methods[name]
        assert own.statistics.token_acceptance_rate == pytest.approx(0.6, abs=0.2)
        assert own.tokens_per_pass > 1.3 and own.stage_seconds()["draft"] > 0
        share = own.draft_share
        assert cell.theory(name) == pytest.approx(
            benchmark.theoretical_speedup(
                own._total("num_tokens") / own._total("num_row_rounds"),
                own._total("num_draft_passes") / own.num_rounds,
                1 + own._total("num_drafted") / own._total("num_row_rounds"),
                heads_passes(cell.passes, share),
                cell.methods["plain"].round_seconds,
            )
        )
        assert cell.extra_bytes(name) is None


def heads_passes(passes, share):
    passes.draft = [share * passes.target_seconds]
    return passes


@pytest.mark.parametrize("kind", heads.HEADS)
def test_heads_have_the_size_of_those_that_are_published(kind):
    shape = benchmark.SHAPES["llama-8b"]
    with torch.device("meta"):
        target = tiny.AutoModelForCausalLM.from_config(shape.make_config())
        model_class, config = heads.HEADS[kind](target)
        head = model_class(config)
    share = heads.share_of_pass(head, target)
    # an MTP layer and the target's head;
    # yuhuili's for Llama 3.1 8B is 0.4B weights with 32,000 tokens; z-lab's for Qwen3 8B 1B, and the target's head beside
    low, high = {"eagle3": (0.05, 0.06), "dflash": (0.18, 0.24), "mtp": (0.10, 0.12)}[kind]
    assert low < share < high
    assert head.config.get_text_config(decoder=True).hidden_size == 4096


def test_the_heads_that_come_with_a_pair_draft_in_earnest(tmp_path):
    target, draft, tokenizer = hs.embedded_pair()
    heads = {"eagle3": hs.embedded_pair(head=True)[1]}
    pair = benchmark.Pair(target, draft, "embedded", tokenizer, heads=heads)
    report = benchmark.run(pair, [benchmark.Cell(context=8)], ["head-eagle3"], num_new_tokens=24, repeats=1)
    counts = report.cells[0].methods["head-eagle3"].statistics
    assert 0 < counts.num_accepted_draft_tokens < counts.num_draft_tokens


def test_a_pair_without_a_shape_has_no_other_heads():
    with pytest.raises(ValueError, match=r"head-dflash is for shapes"):
        benchmark.run(benchmark.Pair(*hs.embedded_pair()[:2], "embedded"), [benchmark.Cell()], methods=["head-dflash"])
