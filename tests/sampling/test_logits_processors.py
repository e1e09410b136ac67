"""Logits processors: each position with its own prefix, and memories that are taken back with the tokens."""

import copy
import random
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LogitsProcessor
from transformers.generation import logits_process as hf

from hf_speculative.sampling.logits_processors import CONTEXT_FREE, Processors
from hf_speculative.types import Batch, Tree
from tests.support import tiny
from tests.support.cases import slow_but
from tests.support.plain import NEW, ours, plain, same_as_plain
from tests.support.trees import depth_of, path_to, random_parents


class Alternate(LogitsProcessor):
    """An automaton with a counter of its own: even and odd tokens in turn, with a period."""

    def __init__(self, period):
        self.period, self.step, self.widths = period, 0, []

    def __call__(self, input_ids, scores):
        self.widths.append(input_ids.shape[1])
        parity = (self.step // self.period) % 2
        self.step += 1
        scores[:, parity::2] = -torch.inf
        return scores


class AlternateWithRollback(Alternate):
    """The same, able to take calls back: never copied inside a round."""

    def rollback(self, num_calls):
        self.step -= num_calls

    def __deepcopy__(self, memo):
        raise AssertionError("copied")


class AlternateWithClone(Alternate):
    def clone(self):
        other = type(self)(self.period)
        other.step, other.widths = self.step, list(self.widths)
        return other

    __deepcopy__ = AlternateWithRollback.__deepcopy__


@pytest.mark.parametrize("kind", [Alternate, AlternateWithRollback, AlternateWithClone])
@pytest.mark.parametrize("source", ["draft", "lookup"])
@pytest.mark.parametrize("period", [2, 3, 5])
def test_a_processor_with_a_memory(target, draft, period, source, kind):
    drafts = {"draft_model": draft} if source == "draft" else {"prompt_lookup_num_tokens": 3}
    inputs = tiny.prompts(1)
    expected = plain(target, inputs, logits_processor=[Alternate(period)])
    processor = kind(period)
    assert ours(target, inputs, logits_processor=[processor], **drafts).tolist() == expected.tolist()
    assert processor.step == NEW  # it moved on once per emitted token
    if kind is not AlternateWithRollback:
        assert processor.widths == list(range(7, 7 + NEW))  # and saw its prefixes in order


class RowBias(LogitsProcessor):
    def __call__(self, input_ids, scores):
        for row in range(scores.shape[0]):
            scores[row, 10 + row] += 50.0 if input_ids.shape[1] % 3 == 0 else 0.0
        return scores


class Counts(LogitsProcessor):
    def __init__(self, shared, step):
        self.shared, self.step = shared, step

    def __call__(self, input_ids, scores):
        self.shared.calls += self.step
        scores[:, self.shared.calls % 7 :: 7] = -torch.inf
        return scores


def two_that_share():
    shared = SimpleNamespace(calls=0)
    return [Counts(shared, 1), Counts(shared, 2)]


class KeepsHistory(LogitsProcessor):
    """A rollback in the natural spelling, which would forget everything if it were called with 0."""

    def __init__(self):
        self.history = []

    def rollback(self, num_calls):
        del self.history[-num_calls:]

    def __call__(self, input_ids, scores):
        self.history.append(int(input_ids[0, -1]))
        scores[:, sum(self.history) % 5 :: 5] = -torch.inf
        return scores


#: each made anew for a call
WITH_A_MEMORY = {
    "alternate": lambda: [Alternate(3)],
    "knows its rows": lambda: [RowBias()],
    "two that share": two_that_share,
    "of one row": lambda: [KeepsHistory()],
}


@pytest.mark.parametrize(
    "name, batch_size",
    [("of one row", 1), ("two that share", 1), *((name, 4) for name in WITH_A_MEMORY if name != "of one row")],
)
def test_memories(target, draft, name, batch_size):
    inputs = tiny.prompts(batch_size)
    expected = plain(target, inputs, logits_processor=WITH_A_MEMORY[name]())
    assert ours(target, inputs, logits_processor=WITH_A_MEMORY[name](), draft_model=draft).tolist() == expected.tolist()


#: transformers' own that look at the prefix: settings with an effect between 0 and 14 columns
MEMORYLESS = {
    "min_length": lambda: hf.MinLengthLogitsProcessor(7, [2, 3]),
    "min_length_0": lambda: hf.MinLengthLogitsProcessor(0, 2),
    "min_new_tokens": lambda: hf.MinNewTokensLengthLogitsProcessor(3, 4, torch.tensor([2])),
    "forced_bos": lambda: hf.ForcedBOSTokenLogitsProcessor(4),
    "forced_eos": lambda: hf.ForcedEOSTokenLogitsProcessor(8, [2, 3]),
    "begin_suppress": lambda: hf.SuppressTokensAtBeginLogitsProcessor([1, 4], 5),
    "decay": lambda: hf.ExponentialDecayLengthPenalty((2, 1.37), [2, 4], 3),
    "decay_from_half_a_token": lambda: hf.ExponentialDecayLengthPenalty((1.5, 1.37), 2, 3),
    "bias": lambda: hf.SequenceBiasLogitsProcessor({(4,): 2.5, (2, 1): -1.5, (3, 1): 0.7, (1, 2, 1): 0.1, (1, 1): 9.0}),
    "bad_words": lambda: hf.NoBadWordsLogitsProcessor([[2], [3], [1, 2], [1, 2, 1, 3]], eos_token_id=2),
    "no_bad_words": lambda: hf.NoBadWordsLogitsProcessor([[2]], eos_token_id=2),
    "watermark": lambda: hf.WatermarkLogitsProcessor(VOCAB, "cpu", context_width=2),
    "selfhash": lambda: hf.WatermarkLogitsProcessor(VOCAB, "cpu", seeding_scheme="selfhash", context_width=3),
    "penalty": lambda: hf.RepetitionPenaltyLogitsProcessor(1.3),
    "penalty_from_a_column": lambda: hf.RepetitionPenaltyLogitsProcessor(0.7, prompt_ignore_length=6),
    "penalty_after_padding": lambda: after_padding(hf.RepetitionPenaltyLogitsProcessor(1.3)),
    **{f"ngram_{n}": lambda n=n: hf.NoRepeatNGramLogitsProcessor(n) for n in (1, 2, 3)},
}
VOCAB, USED = 41, 5


def after_padding(processor):
    """As `generate` sets it from transformers 5.23 on: an entry a row of the call."""
    processor.prompt_ignore_length = torch.tensor([0, 2, 3, 1, 20])
    return processor


def of_row(processor, row):
    ignored = getattr(processor, "prompt_ignore_length", None)
    if isinstance(ignored, torch.Tensor):
        processor = copy.copy(processor)
        processor.prompt_ignore_length = int(ignored[row])
    return processor


def some_batch(generator, shortest):
    batch = Batch(torch.zeros(5, 0, dtype=torch.long), [0] * 5, max_length=40)
    batch.select(generator.sample(range(5), generator.randint(1, 5)))
    longest = shortest + generator.choice([0, 8])
    lengths = [generator.randint(shortest, longest) for _ in batch.rows]
    batch.replace_tail([0] * len(lengths), [generator.choices(range(USED), k=length) for length in lengths])
    return batch


@pytest.mark.parametrize("pass_over", slow_but(["chain", "tree", "draft", "tree beside a memory"], "tree", "draft"))
@pytest.mark.parametrize("name", MEMORYLESS)
def test_all_positions_at_once_are_as_one_by_one(name, pass_over):
    generator, is_draft = random.Random(0), pass_over == "draft"
    for case in range(24):
        batch, n = some_batch(generator, shortest=case % 12 // 2), generator.randint(1, 5)
        tokens = torch.tensor([generator.choices(range(USED), k=n) for _ in batch.rows])
        parents, tree = [list(range(-1, n - 1)) for _ in batch.rows], None
        if pass_over.startswith("tree"):
            parents = [random_parents(n, generator) for _ in batch.rows]
            tree = Tree(torch.tensor(parents), max(map(depth_of, parents)) + generator.randint(0, 1))
        batch.put(tokens, tree=tree)
        if case % 12 == 0:  # a call
            others = [Counts(SimpleNamespace(calls=0), 0)] if pass_over.endswith("memory") else []
            processors, alone = Processors([MEMORYLESS[name](), *others], batch_size=5), MEMORYLESS[name]()
        num_positions, ahead = (1, generator.randint(0, min(n, case % 12))) if is_draft else (n + 1, 0)
        scores = torch.randn(len(batch.rows), num_positions, VOCAB)
        scores[torch.rand_like(scores) < 0.15] = -torch.inf
        expected, is_shown = torch.empty_like(scores), torch.ones(len(batch.rows), num_positions, dtype=torch.bool)
        for lane, row in enumerate(batch.rows):
            for i in range(num_positions):
                path = path_to(parents[lane], ahead + i - 1)
                ids = torch.cat([batch.tokens[lane, : batch.host_lengths[lane]], tokens[lane, path]])
                expected[lane, i] = of_row(alone, row)(ids[None], scores[lane, i : i + 1].clone())[0]
                if others:
                    expected[lane, i, ::7] = -torch.inf
                if others and i:  # what comes after a forbidden token is not shown to who remembers
                    before = parents[lane][i - 1] + 1
                    is_allowed = expected[lane, before, tokens[lane, i - 1]] > -torch.inf
                    is_shown[lane, i] = is_shown[lane, before] & is_allowed
        found = processors(batch, scores.clone(), ahead, is_draft)
        torch.testing.assert_close(found[is_shown], expected[is_shown], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["penalty", "ngram_1", "ngram_2"])
def test_a_prompt_may_hold_what_cannot_be_generated(name):
    """As an image's token does; plain `generate` takes it from transformers 5.23 on."""
    batch = some_batch(random.Random(0), shortest=6)
    scores = torch.randn(len(batch.rows), 1, USED)
    expected = Processors([MEMORYLESS[name]()], batch_size=5)(batch, scores.clone(), ahead=0, is_draft=False)
    found = Processors([MEMORYLESS[name]()], batch_size=5)(batch, scores[..., :3].clone(), ahead=0, is_draft=False)
    assert torch.equal(found, expected[..., :3]) and not torch.equal(found, scores[..., :3])


ONE_CALL = ("penalty", "ngram_2", "bias", "min_new_tokens", "forced_eos", "begin_suppress")


@pytest.mark.parametrize("name, most_calls", [*((name, 1) for name in ONE_CALL), ("decay", 9)])  # one for each width
def test_rows_of_different_lengths_are_few_calls(name, most_calls, monkeypatch):
    calls, processor = [], MEMORYLESS[name]()
    own = type(processor).__call__
    batch = Batch(torch.ones(4, 6, dtype=torch.long), [0] * 4, max_length=40)
    batch.replace_tail([4, 5, 6, 6], [[1, 2], [1, 2], [1, 2], [3] * 5])
    batch.put(torch.ones(4, 5, dtype=torch.long), tree=Tree(torch.tensor([[-1, 0, 0, 1, -1]] * 4), 3))
    processors = Processors([processor], batch_size=4)
    monkeypatch.setattr(type(processor), "__call__", lambda *args: calls.append(args) or own(*args))
    with NoReads():
        processors(batch, torch.randn(4, 6, VOCAB), ahead=0, is_draft=False)
    assert len(calls) <= most_calls


#: transformers' own that do not look at the prefix
CONTEXT_FREE_ONES = [
    hf.TemperatureLogitsWarper(0.7),
    hf.TopKLogitsWarper(5),
    hf.TopPLogitsWarper(0.6),
    hf.TopHLogitsWarper(0.5),
    hf.MinPLogitsWarper(0.1),
    hf.TypicalLogitsWarper(0.6),
    hf.EpsilonLogitsWarper(0.02),
    hf.EtaLogitsWarper(0.02, device="cpu"),
    hf.InfNanRemoveLogitsProcessor(),
    hf.LogitNormalization(),
    hf.SuppressTokensLogitsProcessor([3, 4]),
]


@pytest.mark.parametrize("processor", CONTEXT_FREE_ONES, ids=lambda one: type(one).__name__)
def test_a_processor_for_which_logits_are_not_copied_leaves_them_as_they_are(processor):
    """A round's logits are read after its scores, and `output_logits` returns them."""
    logits = torch.randn(2, 3, VOCAB, generator=torch.Generator().manual_seed(0))
    logits[0, 0, 0] = -torch.inf
    given, batch = logits.clone(), some_batch(random.Random(0), shortest=6)
    processors = Processors([processor], batch_size=5)
    processors(batch, given, ahead=0, is_draft=True)
    assert not processors.write_in_place and torch.equal(given, logits)


def test_the_processors_for_which_logits_are_not_copied_are_all_tried():
    assert {type(one) for one in CONTEXT_FREE_ONES} == set(CONTEXT_FREE)


@pytest.mark.parametrize("given", [{"eos_token_id": [-1, 0], "min_new_tokens": 9}, {"begin_suppress_tokens": [-1, 5]}])
def test_ids_that_are_no_tokens(target, draft, given):
    """As servers give them where no token may end an answer."""
    stats = same_as_plain(target, tiny.prompts(3), given, draft_model=draft, num_draft_tokens=3)
    assert stats.num_draft_tokens


class NoReads(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return function(*args, **(kwargs or {}))


def test_a_decay_that_plain_decoding_does_not_get_to(target, draft):
    """Its growth is larger than any number a few tokens beyond the text, where drafts look."""
    given = {"exponential_decay_length_penalty": (2, 1e30), "min_new_tokens": 11, "eos_token_id": [3, 7], "max_new_tokens": 14}
    same_as_plain(target, tiny.prompts(2), given, draft_model=draft, num_draft_tokens=4)


def test_ids_and_scores_are_contiguous(target, draft):
    """As plain `generate` gives them, so that `view` works, in processors and in criteria."""
    seen = []

    def counts(input_ids, scores):
        seen.append(len(torch.bincount(input_ids.view(-1))) + len(scores.view(-1)))
        return scores

    def goes_on(input_ids, scores, **kwargs):
        seen.append(len(input_ids.view(-1)) + len(scores[-1].view(-1)))
        return torch.zeros(len(input_ids), dtype=torch.bool)

    given = {"logits_processor": [counts], "stopping_criteria": [goes_on]}
    given |= {"return_dict_in_generate": True, "output_scores": True}
    inputs = tiny.prompts(3)
    expected = plain(target, inputs, **given).sequences
    assert ours(target, inputs, **given, draft_model=draft, num_draft_tokens=3).sequences.tolist() == expected.tolist() and seen
