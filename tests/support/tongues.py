"""Tokenizers trained in memory, and drafts whose weights are moved into another vocabulary.

An unrelated draft accepts nothing and tests nothing; so a draft here knows what its original knew, under other ids.
"""

import copy
import functools
import json
import random

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import hf_speculative as hs
from hf_speculative import SpeculativeConfig
from hf_speculative.tokenizers.vocabulary import shared_tokens, vocabulary_of

CORPUS = [
    "def mean(values):\n    return sum(values) / len(values)\n",
    "import os\nimport sys\n\nclass Queue:\n    def __init__(self, size=0):\n        self.size = size\n",
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.\n",
    "for name in sorted(names):\n    print(name, 3.14, [1, 2, 3])\n",
    "Über die Brücke, naïve café, 你好世界 🙂 done.\n",
] * 4


def _train(tokenizer: Tokenizer, vocab_size: int, specials: list[str], **given) -> None:
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=specials, show_progress=False, **given)
    tokenizer.train_from_iterator(CORPUS, trainer)


@functools.cache
def byte_level(vocab_size: int, bos: str | None = None, eos: str = "<|end|>"):
    """Byte-level BPE (GPT-2, Llama 3, Qwen); puts `bos` before a text if given."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [token for token in (bos, eos, "<|pad|>") if token]
    _train(tokenizer, vocab_size, specials, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    return _wrap(tokenizer, bos, eos_token=eos, pad_token="<|pad|>")


@functools.cache
def metaspace(vocab_size: int, scheme: str = "always"):
    """BPE with `▁` for spaces and bytes for what it does not know (Llama 2, Mistral, Gemma)."""
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    specials = ["<unk>", "<s>", "</s>"]
    _train(tokenizer, vocab_size, [*specials, *fallback], initial_alphabet=["▁"], limit_alphabet=90)
    data = json.loads(tokenizer.to_str())
    # The bytes are the model's own tokens, not added ones.
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in specials]
    return _wrap(Tokenizer.from_str(json.dumps(data)), "<s>", eos_token="</s>", unk_token="<unk>")


@functools.cache
def word_piece(vocab_size: int):
    """BERT's: lower case, `##` within words, `[CLS]` before and `[SEP]` after; loses capitals and spaces."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    given = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=given)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def characters(letters: str, eos: str | None = None):
    """One token a character, in this order, `eos` after them; anything else is lost."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    if eos is not None:
        tokenizer.add_special_tokens([AddedToken(eos, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **({"eos_token": eos} if eos else {}))


def _wrap(tokenizer: Tokenizer, bos: str | None, **names) -> PreTrainedTokenizerFast:
    if bos is not None:
        given = [(bos, tokenizer.token_to_id(bos))]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=given)
        names["bos_token"] = bos
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **names)


def in_metaspace(tokenizer, scheme: str = "never", bos: str | None = None) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer's own merges in the other notation: `▁` for spaces, `<0x0A>` for lone bytes, other ids."""
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    pieces = vocabulary_of(tokenizer).pieces

    def written(token: str) -> str | None:
        piece = pieces[data["model"]["vocab"][token]]
        try:
            return None if piece is None else piece.decode().replace(" ", "▁")
        except UnicodeDecodeError:
            return None

    merges = [[written(part) for part in merge] for merge in data["model"]["merges"]]
    merges = [tuple(merge) for merge in merges if None not in merge]
    known = ["<unk>", "</s>", *([bos] if bos else []), *(f"<0x{byte:02X}>" for byte in range(256))]
    known += sorted({part for token in data["model"]["vocab"] if (part := written(token)) is not None})
    vocab = {token: index for index, token in enumerate(known)}
    merges = [(a, b) for a, b in merges if a in vocab and b in vocab and a + b in vocab]
    other = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    other.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    other.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    other.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in known[: 2 + bool(bos)]])
    return _wrap(other, bos, eos_token="</s>", unk_token="<unk>")


def renumbered(tokenizer, seed: int = 0) -> PreTrainedTokenizerFast:
    """The same tokenizer with its ids shuffled."""
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    order = list(range(len(tokenizer)))
    random.Random(seed).shuffle(order)
    data["model"]["vocab"] = {token: order[index] for token, index in data["model"]["vocab"].items()}
    for token in data["added_tokens"]:
        token["id"] = order[token["id"]]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(data)), padding_side="left", **tokenizer.special_tokens_map
    )


@torch.no_grad()
def moved(model, tokenizer, other, vocab_size: int | None = None):
    """`model` in the vocabulary of `other`: what both have keeps its weights, the rest is never likely.

    Args:
        vocab_size: rows of the new embeddings, where they are padded beyond the tokenizer.
    """
    vocab_size = vocab_size or len(other)
    shared = shared_tokens(vocabulary_of(tokenizer), vocabulary_of(other), model.config.vocab_size, vocab_size)
    theirs, ours = torch.tensor(list(shared)), torch.tensor(list(shared.values()))
    draft = copy.deepcopy(model)
    embedding = draft.get_input_embeddings().weight.clone()
    head = model.get_output_embeddings().weight.clone()
    draft.config.tie_word_embeddings = False
    table = torch.nn.Embedding(vocab_size, embedding.shape[1])
    table.weight.normal_(std=float(embedding.std()), generator=torch.Generator().manual_seed(0))
    table.weight[theirs] = embedding[ours]
    draft.set_input_embeddings(table)
    new_head = torch.nn.Linear(head.shape[1], vocab_size, bias=False)
    new_head.weight.zero_()
    new_head.weight[theirs] = head[ours]
    draft.set_output_embeddings(new_head)
    draft.config.vocab_size = vocab_size
    return draft.eval()


@functools.cache
def pair():
    """The embedded pair: target, draft, tokenizer."""
    target, draft, tokenizer = hs.embedded_pair()
    tokenizer.padding_side = "left"
    return target, draft, tokenizer


def speaking(draft, tokenizer, draft_tokenizer, mapping: str | None = None, **config) -> dict:
    """The arguments of a call with a draft of another vocabulary."""
    tokenizers = {"tokenizer": tokenizer, "assistant_tokenizer": draft_tokenizer}
    config = SpeculativeConfig(vocabulary_mapping=mapping, **config)
    return tokenizers | {"draft_model": draft, "speculative_config": config}
