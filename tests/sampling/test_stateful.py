"""What the user's processors and criteria remember: copied for rows and drafts, kept in step with the objects themselves."""

import queue
import re
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import GeneratorType, SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria

import hf_speculative as hs
from tests.support import tiny
from tests.support.plain import NEW, Collect, LastToken, ours, plain

#: where a stop button may keep its state: how it is made, pressed, and read
STATES = {
    "number": (lambda: 0, None, bool),
    "dict": (lambda: {"stop": 0}, lambda held: held.update(stop=1), lambda held: held["stop"]),
    "list": (lambda: [], lambda held: held.append(1), bool),
    "tuple": (lambda: ([0],), lambda held: held[0].append(1), lambda held: len(held[0]) > 1),
    "set": (set, lambda held: held.add(1), bool),
    "deque": (lambda: deque([0]), lambda held: held.append(1), lambda held: len(held) > 1),
    "tensor": (lambda: torch.zeros(1), lambda held: held.add_(1), bool),
    "array": (lambda: np.zeros(1), lambda held: held.fill(1), bool),
    "with a lock": (lambda: [threading.Lock()], lambda held: held.append(1), lambda held: len(held) > 1),
    "object": (lambda: SimpleNamespace(stop=0), lambda held: setattr(held, "stop", 1), lambda held: held.stop),
}


class Button(StoppingCriteria):
    """A stop button, pressed from outside, which also counts by row: it ends a row at its third `token`."""

    def __init__(self, kind, token, batch_size):
        self.token, (make, self.on_press, self.is_pressed) = token, STATES[kind]
        self.num_presses = 0
        self.held, self.counts, self.also = make(), [0] * batch_size, {"counts": torch.zeros(batch_size)}

    def press(self):
        self.num_presses += 1
        if self.on_press is None:
            self.held = 1
        else:
            self.on_press(self.held)

    def __call__(self, input_ids, scores, **kwargs):
        hits = input_ids[:, -1] == self.token
        self.counts = [n + int(hit) for n, hit in zip(self.counts, hits, strict=True)]
        self.also["counts"] += hits
        assert self.also["counts"].tolist() == self.counts
        return (self.also["counts"] >= 3) | bool(self.num_presses and self.is_pressed(self.held))


class Presses(Collect):
    def __init__(self, button, at):
        super().__init__()
        self.button, self.at = button, at

    def put(self, value):
        super().put(value)
        if len(self.pieces) == self.at:
            self.button.press()


@pytest.mark.parametrize(("kind", "batch_size"), [("number", 1), *((kind, 3) for kind in STATES)])
def test_a_stop_button(target, draft, kind, batch_size):
    """Wherever it keeps its state it ends all rows, and none of them loses its own count."""
    inputs = tiny.prompts(batch_size)
    token = plain(target, inputs)[-1, 7:].mode().values.item()
    settings = {"draft_model": draft, "num_draft_tokens": 1}
    for at, eos in ((4, 60), (99, 60)):
        pressed, other = Button(kind, token, batch_size), Button(kind, token, batch_size)
        streamer = Presses(pressed, at)
        found = ours(target, inputs, stopping_criteria=[pressed], streamer=streamer, eos_token_id=eos, **settings)
        expected = plain(target, inputs, stopping_criteria=[other], streamer=Presses(other, at), eos_token_id=eos)
        width = min(found.shape[1], expected.shape[1])
        assert found[:, :width].tolist() == expected[:, :width].tolist()
        assert abs(found.shape[1] - expected.shape[1]) <= (at == 4), "a round may bring a token more"
        assert pressed.counts[0] == pressed.also["counts"][0] == (found[0, 7:] == token).sum()


@dataclass(frozen=True)
class Frozen:
    total: int = 0


class Private:
    __slots__ = ("__total", "num_calls")

    def __init__(self):
        self.__total = self.num_calls = 0

    def add(self, token):
        self.num_calls += 1
        self.__total += token
        return self.__total


def _frozen(processor, token):
    processor.held = Frozen(processor.held.total + token)
    return processor.held.total


def _moved(processor, token):
    held = processor.held
    held["here"] = held["here"].setdefault(token % 3, {})
    return len(str(held["root"]))


def _tree():
    root: dict = {}
    return {"here": root, "root": root}


#: how a memory is made, and what it gives for a token that it reads
MEMORIES = {
    "a frozen object": (Frozen, _frozen),
    "private slots": (Private, lambda processor, token: processor.held.add(token)),
    "a generator of random numbers": (lambda: Random(0), lambda processor, token: processor.held.randrange(1000)),
    "a place in a tree": (_tree, _moved),
}


class Remembers(LogitsProcessor):
    def __init__(self, kind):
        make, self.read = MEMORIES[kind]
        self.held = make()

    def __call__(self, input_ids, scores):
        number = self.read(self, input_ids[0, -1].item())
        return scores.index_add(1, torch.tensor([number % 61]), torch.full((len(scores), 1), 4.0))


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_memory_is_the_users_own_in_the_next_call(target, draft, kind):
    """As after plain decoding: calls that follow go on from what the calls before have left."""
    inputs, found, expected = tiny.prompts(1), Remembers(kind), Remembers(kind)
    for _ in range(3):
        text = ours(target, inputs, draft_model=draft, logits_processor=[found])
        assert text.tolist() == plain(target, inputs, logits_processor=[expected]).tolist()


class Banned(LogitsProcessor):
    """What is banned is changed from outside; holds things that have to be shared, however deep."""

    def __init__(self, model):
        self.banned, self.calls, self.itself = [], 0, self
        self.held = {"models": [model], "weights": [next(model.parameters())], "lock": [threading.Lock()]}

    def __call__(self, input_ids, scores):
        self.calls += 1
        with self.held["lock"][0]:
            return scores.index_fill(1, torch.tensor(self.banned, dtype=torch.long), -torch.inf)

    def press(self):
        self.banned.append(self.token)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_processor_that_is_changed_from_outside(target, draft, batch_size, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "__deepcopy__", lambda *args: pytest.fail("copied"), raising=False)
    inputs = tiny.prompts(batch_size)
    processor = Banned(target)
    processor.token = plain(target, inputs)[0, 7:].mode().values.item()
    found = ours(target, inputs, draft_model=draft, logits_processor=[processor], streamer=Presses(processor, 3))
    assert processor.token not in found[:, 7 + 7 :] and processor.calls == NEW
    without = ours(target, inputs, draft_model=draft, logits_processor=[Banned(target)])
    assert without.tolist() == plain(target, inputs).tolist()


class Handle:
    """Has its own way to be copied, and no other."""

    def __deepcopy__(self, memo):
        return Handle()

    def __reduce_ex__(self, protocol):
        raise RuntimeError("not to be pickled")


class Named(dict):
    """A dict with attributes."""


class Holds(LogitsProcessor):
    """What it holds is also somebody else's, lies in slots, comes and goes."""

    __slots__ = ("num_calls",)

    def __init__(self, tensor, array):
        self.tensor, self.array, self.handle, self.named = tensor, array, Handle(), Named()
        self.num_calls, self.named.tensor, self.first, self.owner = 0, torch.zeros(2), True, [self]

    def __call__(self, input_ids, scores):
        self.tensor += 1
        self.array += 1
        self.num_calls += 1
        self.named.tensor = self.named.tensor + 1
        vars(self).pop("first", None)
        return scores


def test_what_the_user_holds_too_is_written_to(target, draft):
    tensor, array = torch.zeros(2), np.zeros(2)
    processor = Holds(tensor, array)
    inputs = tiny.prompts(1)
    found = ours(target, inputs, draft_model=draft, logits_processor=[processor])
    assert found.tolist() == plain(target, inputs).tolist()
    assert processor.tensor is tensor and processor.array is array
    assert [tensor[0], array[0], processor.num_calls, processor.named.tensor[1]] == [NEW] * 4
    assert not hasattr(processor, "first") and processor.owner == [processor]


@dataclass(frozen=True)
class Notes(LogitsProcessor):
    seen: list

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids.shape[1])
        return scores


@pytest.mark.parametrize("batch_size", [1, 3])
def test_what_the_users_objects_saw(target, draft, batch_size):
    """Though one is frozen, and what it holds is changed from outside."""
    inputs, criterion, seen = tiny.prompts(batch_size), LastToken(-1), list[int | str]()
    streamer = Presses(SimpleNamespace(press=lambda: seen.append("pressed")), 3)
    own = {"logits_processor": [Notes(seen)], "stopping_criteria": [criterion], "streamer": streamer}
    assert ours(target, inputs, draft_model=draft, **own).tolist() == plain(target, inputs).tolist()
    seen.remove("pressed")
    assert seen == list(range(7, 7 + NEW)) and criterion.calls == list(range(8, 8 + NEW))


class Uncopyable(LogitsProcessor):
    """Puts out what it sees, to a consumer that reads it."""

    def __init__(self, channel):
        self.channel = channel

    def __call__(self, input_ids, scores):
        next(self.channel) if isinstance(self.channel, GeneratorType) else self.channel.put(input_ids.shape[1])
        return scores


CHANNELS = {"queue": queue.Queue, "simple queue": queue.SimpleQueue, "generator": lambda: (n for n in range(NEW))}


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("kind", CHANNELS)
def test_a_processor_that_cannot_be_copied(target, draft, kind, batch_size):
    """Nothing is drafted ahead of it, and it is called as in plain generate, with the whole of a batch."""
    inputs, channel, streamer = tiny.prompts(batch_size), CHANNELS[kind](), Collect()
    words = r"nothing is drafted in this call: `logits_processor`: Uncopyable .* `clone\(\)`"
    with pytest.warns(UserWarning, match=words):
        found = ours(target, inputs, draft_model=draft, logits_processor=[Uncopyable(channel)], streamer=streamer)
    assert found.tolist() == plain(target, inputs).tolist()
    assert len(streamer.pieces) == 1 + NEW and streamer.ended
    if kind != "generator":
        assert [channel.get() for _ in range(channel.qsize())] == list(range(7, 7 + NEW))
    else:
        assert next(channel, None) is None
    part = Uncopyable(CHANNELS[kind]())
    with pytest.raises(TypeError, match="`logits_processor`: Uncopyable"):
        hs.generate_batches(target, [[1, 2]], max_new_tokens=2, draft_model=draft, logits_processor=[part])


class Budget(LogitsProcessor):
    """Counts tokens, for a criterion that ends the text when they are spent."""

    def __init__(self, most):
        self.most, self.num = most, 0

    def __call__(self, input_ids, scores):
        self.num += 1
        return scores


class Spent(StoppingCriteria):
    def __init__(self, budget):
        self.budget = budget

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), self.budget.num >= self.budget.most)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_processor_and_a_criterion_that_share_a_memory(target, draft, batch_size):
    def sharing():
        budget = Budget(8)
        return {"logits_processor": [budget], "stopping_criteria": [Spent(budget)]}

    inputs = tiny.prompts(batch_size)
    expected = plain(target, inputs, **sharing())
    with pytest.warns(UserWarning, match="share an object of type Budget, of which no copy serves both"):
        found = ours(target, inputs, **sharing(), draft_model=draft)
    assert expected.shape[1] == 7 + 8 and found.tolist() == expected.tolist()
    with pytest.raises(TypeError, match="let each have its own"):
        next(hs.generate_batches(target, [[5, 6]], draft_model=draft, max_new_tokens=4, **sharing()))


@dataclass(frozen=True)
class Constant:
    number: int = 8


HELD = [Constant(), torch.device("cpu"), Path("a"), (1, 2), frozenset([1]), re.compile("a")]
HELD.append(tiny.llama().generation_config)


@pytest.mark.parametrize("held", HELD, ids=lambda held: type(held).__name__)
def test_what_does_not_change_may_be_shared(target, draft, held):
    processor, criterion = Budget(8), Spent(Budget(99))
    processor.held = criterion.held = held
    criterion.waiting = queue.Queue()  # which cannot be copied, and need not be for a single row
    with hs.record() as stats:
        ours(target, tiny.prompts(1), logits_processor=[processor], stopping_criteria=[criterion], draft_model=draft)
    assert stats.num_draft_tokens


class Shuffled(LogitsProcessor):
    """Adds noise from a generator of its own, the same to all rows."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)

    def __call__(self, input_ids, scores):
        return scores + torch.randn(scores.shape[-1], generator=self.generator) / 4


def test_a_processor_with_a_generator(target, draft):
    inputs = tiny.prompts(3)
    expected = plain(target, inputs, logits_processor=[Shuffled()])
    found = ours(target, inputs, logits_processor=[Shuffled()], draft_model=draft, num_draft_tokens=2)
    assert found.tolist() == expected.tolist() != plain(target, inputs).tolist()
