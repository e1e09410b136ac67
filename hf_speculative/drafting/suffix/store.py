"""A store of texts to copy drafts from: finished answers, and the user's texts."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from transformers import PreTrainedTokenizerBase

from ...reports.files import write
from ...tokenizers.vocabulary import is_padding
from .index import END, NGRAMS, Index

MOST_KEPT = 1_000_000
#: what a saved store calls itself
FORMAT = "hf_speculative suffix store 1"
#: two parts of the index are merged where the older has less than RATIO times the tokens of the newer
RATIO = 16
#: the number of a prompt's last tokens that are stored before its answer
CONTEXT = 24


class SuffixStore:
    """Documents of tokens, found by their substrings; beyond its bounds, the oldest go first.

    One store serves any number of calls, threads and models of one tokenizer. The finished answers of calls that are given a
    store enter it: do not share one between users who must not see each other's texts. 10^6 tokens take 20 MB.

    Args:
        tokenizer: turns texts and files into tokens, and tells a store of another tokenizer apart.
        max_tokens: tokens that are kept, an end mark for each document among them; of a longer document, its end.
        max_documents: documents that are kept; by default any number.

    Attributes:
        num_tokens, num_documents: what there is.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase | None = None, *, max_tokens: int = MOST_KEPT, max_documents: int | None = None
    ):
        for name, value, least in (("max_tokens", max_tokens, 2), ("max_documents", max_documents, 1)):
            if isinstance(value, bool) or not isinstance(value, (int, type(None))):
                raise TypeError(f"`{name}={value!r}` is of type {type(value).__name__}: give a whole number.")
            if value is not None and value < least:
                raise ValueError(f"`{name}={value}` keeps nothing: give {least} or more.")
        self.tokenizer, self.max_tokens, self.max_documents = tokenizer, max_tokens, max_documents
        self._vocabulary = "" if tokenizer is None else _fingerprint(tokenizer)
        self._vocab_size: int | None = None  # of the first model that was drafted for
        self._largest_id = -1
        # Places are counted from the first token that ever entered.
        self._parts: tuple[tuple[int, Index], ...] = ()  # the place of each part's first token, and the part
        self._documents: deque[int] = deque()  # where each begins
        self._first = self._end = 0
        self._lock = Lock()

    @property
    def num_tokens(self) -> int:
        return self._end - self._first

    @property
    def num_documents(self) -> int:
        return len(self._documents)

    def add(self, tokens: Sequence[int], prompt: Sequence[int] | None = None) -> None:
        """Add a document: token ids.

        Args:
            prompt: the token ids that it answers. Their end is kept before it, so that it drafts the next answer to them.
        """
        if len(tokens):
            self._add_all([[*(() if prompt is None else prompt[-CONTEXT:]), *tokens]])

    def add_texts(self, texts: Iterable[str]) -> None:
        """Add documents that `tokenizer` makes into tokens.

        Raises:
            ValueError: the store has no tokenizer.
        """
        if self.tokenizer is None:
            raise ValueError("texts become tokens by a tokenizer: give `SuffixStore(tokenizer=...)`.")
        self._add_all([self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids for text in texts])

    def add_files(self, *paths: str | os.PathLike) -> None:
        """Add files of UTF-8 text, a document each; of a folder, all such files in it that are not hidden.

        Raises:
            FileNotFoundError: there is no such file or folder.
            ValueError: a file that is named is no UTF-8 text; the store has no tokenizer.
        """
        texts = []
        for path in map(Path, paths):
            found = [_text_of(file) for file in (_visible_files(path) if path.is_dir() else [path])]
            if found == [None] and not path.is_dir():
                raise ValueError(f"{str(path)!r} is no UTF-8 text: leave it out.")
            texts += [text for text in found if text is not None]
        self.add_texts(texts)

    def _add_all(self, documents: Sequence[Sequence[int]]) -> None:
        arrays = [np.asarray(tokens, dtype=np.int32)[1 - self.max_tokens :] for tokens in documents if len(tokens)]
        if not arrays:
            return
        text = np.concatenate([piece for array in arrays for piece in (array, [END])], dtype=np.int32)
        if np.count_nonzero(text < 0) != len(arrays):
            raise ValueError(f"a document holds {min(map(np.min, arrays))}, and token ids are not negative.")
        self._append(text, [len(array) + 1 for array in arrays])

    def _append(self, text: np.ndarray, lengths: Sequence[int]) -> None:
        """Add a text of documents of these `lengths`, end marks included."""
        with self._lock:
            for length in lengths:
                self._documents.append(self._end)
                self._end += length
            self._largest_id = max(self._largest_id, int(text.max()))
            parts, start = list(self._parts), self._end - len(text)
            while parts and len(parts[-1][1]) < RATIO * len(text):  # they grow geometrically: few parts, few sorts
                start, index = parts.pop()
                left_out = max(0, self._first - start)
                text, start = np.concatenate([index.tokens[left_out:], text]), start + left_out
            self._parts = (*parts, (start, Index(text)))
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        max_documents = self.max_documents or len(self._documents)
        while self.num_tokens > self.max_tokens or len(self._documents) > max_documents:
            self._documents.popleft()
            self._first = self._documents[0]
        self._parts = tuple(part for part in self._parts if part[0] + len(part[1]) > self._first)

    def longest_match(self, context: Sequence[int], num_tokens: int) -> tuple[int, list[list[int]]]:
        """How many of the last tokens of `context` are in the store, and what followed there, the latest last.

        Two tokens at least, else it is 0. Each place with the longest match gives its `num_tokens` following tokens: after the
        end of a document `END`, then whatever.
        """
        tail, first, longest = np.asarray(context, dtype=np.int32), self._first, 0
        found: list[list[int]] = []
        for n in NGRAMS:
            if longest or n > len(tail):
                continue
            for start, index in self._parts:
                length, places = index.longest_match(tail, n, first - start)
                if length > longest:
                    longest, found = length, []
                if length and length == longest:
                    found += index.following(places, num_tokens)
        return longest, found

    def check_vocabulary(self, vocab_size: int) -> None:
        """Whether the tokens may be those of a model with `vocab_size` logits; the first one asked for decides.

        Raises:
            ValueError: they are clearly not.
        """
        known = self._vocab_size or vocab_size
        if self._largest_id >= vocab_size or not is_padding(known, vocab_size):
            held = f"it holds token {self._largest_id}, of a vocabulary of {known}, and the model's has {vocab_size}"
            raise ValueError(f"the suffix store is for another tokenizer: {held}: use a store of its own for this model.")
        self._vocab_size = known

    def save(self, path: str | os.PathLike) -> None:
        """Write all documents into one safetensors file: int32 `tokens`, and where `documents` begin.

        A file of that name is replaced as a whole: processes that have loaded it keep what they have.

        Raises:
            ValueError: there can be no file of that name.
            OSError: naming the file.
        """
        with self._lock:
            pieces = [index.tokens[max(0, self._first - start) :] for start, index in self._parts]
            tensors = {
                "tokens": torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int32), *pieces])),
                "documents": torch.tensor([start - self._first for start in self._documents], dtype=torch.long),
            }
        names = ("_vocabulary", "_vocab_size", "max_tokens", "max_documents")
        metadata = {"format": FORMAT, "settings": json.dumps({name: getattr(self, name) for name in names})}
        write(path, save(tensors, metadata))

    @classmethod
    def load(cls, path: str | os.PathLike, tokenizer: PreTrainedTokenizerBase | None = None) -> SuffixStore:
        """Read what `save` wrote, with its bounds. The file is mapped into memory and never written to: processes share it.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no file of ours, a damaged one, or one that was written with another tokenizer.
        """
        name = repr(os.fspath(path))
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise ValueError(f"{name} is no suffix store: give a file that `SuffixStore.save` wrote.")
                settings = json.loads(metadata["settings"])
                tokens, starts = (file.get_tensor(name).numpy() for name in ("tokens", "documents"))
        except SafetensorError as error:
            raise ValueError(f"{name} is no suffix store, or a damaged one ({error}): fill it anew.") from error
        ends = np.append(starts[1:], len(tokens))[: len(starts)]
        marks = np.flatnonzero(tokens < 0)
        if starts[:1].any() or not np.array_equal(marks, ends - 1):
            raise ValueError(f"{name} is a damaged suffix store, its documents do not fill it: fill it anew.")
        store = cls(tokenizer)
        written, own = settings["_vocabulary"], store._vocabulary
        if written and own and written != own:
            reason = f"{name} was written with another tokenizer than the {type(tokenizer).__name__} given"
            way_out = "give the one it was written with, or fill a new store"
            raise ValueError(f"{reason}, so that its ids mean other texts: {way_out}.")
        vars(store).update(settings | {"_vocabulary": own or written})
        if len(tokens):
            store._append(tokens, (ends - starts).tolist())
        return store

    def __getstate__(self) -> dict:
        """All but the lock, for copies and pickles."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state, _lock=Lock())


def _fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    return hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode()).hexdigest()[:16]


def _visible_files(folder: Path) -> list[Path]:
    """The files in a folder, sorted; names that begin with a dot are left out."""
    found = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return [folder / file for file in sorted(found) if not any(part.startswith(".") for part in file.parts)]


def _text_of(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # an image, perhaps
        return None
