"""What tests/distributed/test_two_ranks.py has two processes do: checks that run on both at once, over gloo on the CPU.

A process is started with its rank, a port and a folder, and leaves there what became of each check. The two are seeded
differently, and a collective that the other one does not come to fails after TIMEOUT.
"""

import contextlib
import copy
import json
import random
import sys
import time
import traceback
import warnings
import weakref
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, StoppingCriteriaList
from transformers.distributed import DistributedConfig

import hf_speculative as hs
from hf_speculative.call import learned
from hf_speculative.drafting.draft_model import DraftModelSource
from hf_speculative.drafting.hybrid import HybridDrafter
from hf_speculative.interfaces import Drafter, Schedule
from hf_speculative.models import model_state, probe, verified_types
from hf_speculative.schedules import Adaptive, round_costs
from hf_speculative.types import Costs, Draft
from tests.architectures.check import build
from tests.support import tiny, two_processes

TIMEOUT = timedelta(seconds=60)
SETTINGS = {"max_new_tokens": 16, "pad_token_id": 0}
CHECKS: dict = {}
#: the target and its draft: whole, split over the ranks, in stages, and sharded by FSDP2
MODELS: dict = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def run(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    two_processes.join(rank, folder, timeout=TIMEOUT)
    make_models(rank, folder)
    results: dict[str, str] = {}
    for name, function in CHECKS.items():
        torch.manual_seed(rank)
        random.seed(rank)
        try:
            function(rank)
            results[name] = ""
        except (Exception, pytest.fail.Exception):
            results[name] = traceback.format_exc()
        (folder / f"{rank}.json").write_text(json.dumps(results))
        with contextlib.suppress(RuntimeError):
            distributed.barrier()
        if "waited for the other ranks" in results[name] or "Timed out" in results[name]:
            break  # what comes after would only wait as well
    with contextlib.suppress(RuntimeError):
        distributed.destroy_process_group()


def make_models(rank: int, folder: Path) -> None:
    target = tiny.llama(vocab_size=62)  # older transformers split even numbers only
    for name, model in {"target": target, "draft": tiny.noisy_copy(target, noise=0.1)}.items():
        if rank == 0:
            model.save_pretrained(folder / name)
        distributed.barrier()
        MODELS[name], MODELS[f"sharded {name}"] = model, fully_sharded(model, model.model.layers)
        for way, config in (("split", {"tp_plan": "auto"}), ("staged", {"pp_size": 2})):
            own = DistributedConfig(**config)
            MODELS[f"{way} {name}"] = AutoModelForCausalLM.from_pretrained(folder / name, distributed_config=own)


def fully_sharded(model, layers):
    twin, layers = copy.deepcopy((model, list(layers)))
    for layer in layers:
        fully_shard(layer)
    return fully_shard(twin)


def from_both(value) -> list:
    gathered = [None, None]
    distributed.all_gather_object(gathered, value)
    return gathered


# ---------------------------------------------------------------------------------------------- tensor parallel


#: targets whose ranks decide together, each with a draft that all ranks hold or share
TOGETHER = (("split target", "draft"), ("split target", "split draft"), ("staged target", "draft"))


def decide_alike(draft: str, target: str = "split target", **settings):
    """One call on both ranks: the same tokens, rounds and drafts. Returns the tokens and the statistics."""
    given = {"draft_model": MODELS[draft]} if draft else {}
    with hs.record() as stats:
        out = hs.generate(MODELS[target], **tiny.prompts(3), **given, **SETTINGS | settings)
    one, other = from_both((getattr(out, "sequences", out).tolist(), [row.to_dict() for row in stats.rows]))
    assert one == other
    return out, stats


@check
def greedy_is_the_whole_models(rank):
    plain = MODELS["target"].generate(**tiny.prompts(3), do_sample=False, **SETTINGS)
    for target, draft in TOGETHER:
        out, stats = decide_alike(draft, target, do_sample=False, num_draft_tokens=4)
        assert out.tolist() == plain.tolist()
        assert stats.num_accepted_draft_tokens > 0 and stats.num_rejections > 0


@check
def sampled_tokens_are_the_same_on_all_ranks(rank):
    for target, draft in TOGETHER:
        first, _ = decide_alike(draft, target, do_sample=True, num_assistant_tokens_schedule="heuristic")
        again, _ = decide_alike(draft, target, do_sample=True, num_draft_tokens=4)
        assert first.tolist() != again.tolist(), "drawn anew"
    one, other = from_both(torch.rand(1).item())
    assert one != other, "what else is drawn stays each rank's own"


@check
def reproducible_is_plain_under_the_first_ranks_seed(rank):
    torch.manual_seed(0)
    plain = MODELS["target"].generate(**tiny.prompts(3), do_sample=True, **SETTINGS)
    accepted = []
    for draft in ("draft", "split draft"):
        torch.manual_seed(rank)
        out, stats = decide_alike(draft, do_sample=True, reproducible=True, num_draft_tokens=4)
        assert out.tolist() == plain.tolist()
        accepted.append([row.num_accepted_draft_tokens for row in stats.rows])
    assert accepted[0] == accepted[1], "a draft that all ranks run has read the same tokens on each of them"


@check
def clocks_of_their_own_do_not_lead_ranks_apart(rank):
    """The first rank's lengths count, with a draft that seems to pay."""
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + rank * random.random())
    cheap = mock.patch.object(DraftModelSource, "cost_of_token", lambda *args: 0.05)
    unknown = mock.patch.object(learned, "_costs", weakref.WeakKeyDictionary())
    with mock.patch.object(round_costs, "time", clock), cheap, unknown:
        for do_sample in (True, False):
            _, stats = decide_alike("split draft", do_sample=do_sample, max_new_tokens=100)
            assert stats.num_draft_tokens > 20


@check
def guesses_are_not_chosen_by_rank(rank):
    """Beside a draft that all ranks run: none join by themselves, and none that are asked for."""
    target, call = MODELS["split target"], tiny.prompts(1) | SETTINGS | {"do_sample": False}
    with mock.patch.object(HybridDrafter, "propose", side_effect=AssertionError):
        hs.generate(target, **call, assistant_early_exit=1)
    with pytest.raises(ValueError, match="guesses beside a draft that several ranks run"):
        hs.generate(target, **call, draft_model=[MODELS["split draft"], "auto"])
    ids = hs.generate(target, **call, draft_model=[MODELS["draft"], "auto"]).tolist()
    assert from_both(ids) == [ids, ids]


@check
def a_criterion_that_answers_by_rank(rank):
    for lengths in ((6, 11), (11, 6)):
        ends = StoppingCriteriaList([lambda ids, scores, length=7 + lengths[rank]: ids.shape[1] >= length])
        out, _ = decide_alike("draft", do_sample=False, num_draft_tokens=6, stopping_criteria=ends)
        assert out.shape[1] == 7 + lengths[0]


class ByRank(Schedule):
    """A schedule of a user's that each rank has its own idea of."""

    def __init__(self, rank: int):
        self.rank = rank

    def num_draft_tokens(self, row: int) -> int:
        return 3 + self.rank

    def should_stop(self, scores, tokens):
        return tokens % 2 == self.rank


@check
def a_schedule_that_plans_by_rank(rank):
    config = hs.SpeculativeConfig(schedule=ByRank(rank))
    for draft in ("draft", "split draft"):
        _, stats = decide_alike(draft, do_sample=True, speculative_config=config)
        assert stats.num_draft_tokens < 3 * stats.num_spec_steps


class Guesses(Drafter):
    """A drafter of a user's that guesses at random."""

    one_hot_proposals = True

    def propose(self, batch, num_tokens, schedule, sampler):
        width = random.randint(0, max(num_tokens))
        tokens = torch.randint(tiny.VOCAB, (len(batch.rows), width))
        return Draft(tokens, None, torch.tensor(num_tokens).clamp(max=width))


@check
def other_drafters_and_caches(rank):
    guesses = {"draft_model": Guesses(), "speculative_config": hs.SpeculativeConfig(num_draft_tokens=4)}
    decide_alike("", do_sample=True, **guesses)
    decide_alike("draft", do_sample=True, num_draft_tokens=3, num_return_sequences=2)
    lookup = {"prompt_lookup_num_tokens": 3, "num_assistant_tokens_schedule": "constant"}
    without_a_model = lookup, {"draft_model": "auto", "num_draft_tokens": 3}
    for settings in (*without_a_model, {"assistant_early_exit": 1, "num_draft_tokens": 3}):
        _, stats = decide_alike("", do_sample=True, **settings)
        assert stats.num_draft_tokens > 0


@check
def the_universal_path(rank):
    """Hidden states are asked for, which transformers' own cache is kept for."""
    asked = {"return_dict_in_generate": True, "output_hidden_states": True}
    _, stats = decide_alike("draft", do_sample=True, num_draft_tokens=4, **asked)
    assert stats.num_accepted_draft_tokens > 0


@check
def rows_that_are_done_are_replaced(rank):
    settings = {"do_sample": True, "num_draft_tokens": 3, "eos_token_id": list(range(8))}
    completions = hs.generate_batches(
        MODELS["split target"], tiny.texts(5, 7), draft_model=MODELS["draft"], batch_size=2, **settings, **SETTINGS
    )
    one, other = from_both([completion.new_ids for completion in completions])
    assert one == other and len(set(map(len, one))) > 1


@check
def a_round_takes_three_broadcasts(rank):
    broadcast, sizes = distributed.broadcast, []

    def counted(tensor, *args, **kwargs):
        sizes.append(tensor.numel())
        return broadcast(tensor, *args, **kwargs)

    with mock.patch.object(distributed, "broadcast", counted):
        _, stats = decide_alike("draft", do_sample=True, num_draft_tokens=4)
    assert len(sizes) <= 2 + 3 * stats.num_target_forwards, "two for the state of the generator"
    assert (stats.num_draft_forwards > 0) == (rank == 0), "the first rank drafts for all"


# ---------------------------------------------------------------------------------------------- sharded


def unequal(rank: int, fewest: int = 4) -> dict:
    """Another prompt on each rank, and more tokens on the second."""
    return tiny.prompts(1 + 2 * rank, seed=rank) | {"max_new_tokens": (fewest, 16)[rank], "pad_token_id": 0}


def is_plain(rank: int, draft, fewest: int = 4, **settings) -> None:
    """One call on both ranks gives what the whole model gives on each."""
    torch.manual_seed(rank)
    plain = MODELS["target"].generate(**unequal(rank, fewest), **settings)
    torch.manual_seed(rank)
    given = {"draft_model": MODELS[draft]} if draft else {"prompt_lookup_num_tokens": 3}
    own = {"reproducible": True} if settings.get("do_sample") else {}
    if draft:
        own["speculative_config"] = hs.SpeculativeConfig(schedule=Adaptive(4, costs=Costs(0.05, 0.05)))
    with hs.record() as stats:
        out = hs.generate(MODELS["sharded target"], **unequal(rank, fewest), **given, **settings, **own)
    (one, _), (other, num_accepted) = from_both((stats.num_target_forwards, stats.num_accepted_draft_tokens))
    assert out.tolist() == plain.tolist()
    assert one < other and (num_accepted or draft is None), "the work was unequal"


@check
def ranks_with_unequal_work(rank):
    is_plain(rank, "sharded draft", fewest=1, do_sample=True)  # no draft on the first rank, ever
    for draft in ("sharded draft", "draft", None):
        is_plain(rank, draft, do_sample=False)


@check
def forwards_that_only_one_rank_needs(rank):
    """The second rank tries both models on random tokens first, as it does with a type it does not know."""
    known = [] if rank == 1 else verified_types.TESTED["ragged"]
    with mock.patch.dict(verified_types.TESTED, ragged=known):
        is_plain(rank, "sharded draft", do_sample=False)
    assert sum((probe.once, "ragged") in kept for kept in model_state._loaded.values()) == 2 * rank


@check
def windows_that_only_one_rank_has(rank):
    mine = tiny.texts(5, 7, seed=3) if rank == 1 else []
    settings = {"max_new_tokens": 9, "pad_token_id": 0, "do_sample": False}
    expected = [MODELS["target"].generate(torch.tensor([ids]), **settings)[0, len(ids) :].tolist() for ids in mine]
    for draft in (MODELS["sharded draft"], None):
        found = hs.generate_batches(MODELS["sharded target"], mine, draft_model=draft, batch_size=2, window=2, **settings)
        assert [completion.new_ids for completion in found] == expected


@check
def an_error_on_one_rank_does_not_hold_up_the_other(rank):
    settings = SETTINGS | {"draft_model": MODELS["sharded draft"], "do_sample": False, "num_draft_tokens": 2}
    if rank == 0:  # fails in the middle of the text
        put = mock.Mock(side_effect=[None, None, None, OSError("nobody listens any more")])
        settings["streamer"] = SimpleNamespace(put=put, end=lambda: None)
    try:
        out = hs.generate(MODELS["sharded target"], **tiny.prompts(1), **settings)
    except OSError:
        assert rank == 0
    else:
        assert rank == 1 and out.shape[1] == 7 + SETTINGS["max_new_tokens"]
    is_plain(rank, "sharded draft", do_sample=False)


@check
def an_encoder_decoder_model(rank):
    target = build("seq2seq", "bart")
    draft = tiny.noisy_copy(target)
    inputs = tiny.prompts(1 + rank, seed=rank)
    settings = {"min_new_tokens": (3, 12)[rank], "max_new_tokens": (3, 12)[rank], "do_sample": False}
    plain = target.generate(**inputs, **settings)
    shared = []
    for model in (target, draft):
        shared.append(fully_sharded(model, (*model.model.encoder.layers, *model.model.decoder.layers)))
        with torch.no_grad():  # FSDP wants the whole model to run before its encoder does
            shared[-1](input_ids=inputs["input_ids"], decoder_input_ids=inputs["input_ids"])
    with pytest.raises(ValueError, match="encoders run once a window"):
        hs.generate_batches(shared[0], [[5, 6]], draft_model=shared[1], **SETTINGS)
    out = hs.generate(shared[0], **inputs, draft_model=shared[1], num_draft_tokens=3 + rank, **settings)
    assert out.tolist() == plain.tolist()


@check
def what_is_refused_and_warned_about(rank):
    target, draft = MODELS["sharded target"], MODELS["sharded draft"]
    for one in (target, MODELS["staged target"]):
        with pytest.raises(ValueError, match="`assistant_early_exit` drafts with parts of the target"):
            hs.generate(one, **tiny.prompts(1), assistant_early_exit=1, **SETTINGS)
    with pytest.raises(ValueError, match="token_healing"):
        hs.generate(target, **tiny.prompts(1), draft_model=draft, token_healing=True, **SETTINGS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hs.generate(target, **unequal(rank), draft_model=draft, synced_gpus=False)
    assert any("FSDP2 has sharded" in str(warning.message) for warning in caught)
    for costs in learned._costs[target][draft].values():
        assert costs(4).draft == 1.0 and not any(fit.num_timed for fit in costs.fits.values()), "assumed, never learned"


if __name__ == "__main__":
    run(int(sys.argv[1]), Path(sys.argv[2]))
