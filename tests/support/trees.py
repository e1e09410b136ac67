"""Trees of draft tokens for the tests: random ones, in which the right continuation is often some branch."""

import inspect
import random

import torch

import hf_speculative as hs
from hf_speculative.hf_compat import CACHE, tree_map_only
from hf_speculative.models import Inputs, RaggedModel
from hf_speculative.models.multimodal import EncoderDecoderModel
from hf_speculative.models.positions import counts_itself
from hf_speculative.types import Batch, Tree, along_path
from tests.support import tiny


def random_parents(num_nodes: int, generator: random.Random) -> list[int]:
    """Parents come first; chains, stars and everything between."""
    return [generator.randint(max(-1, i - 4), i - 1) for i in range(num_nodes)]


class KnowingDrafter(hs.Drafter):
    """Proposes random trees over texts that it knows: a node on the right path has the right token below it, often.

    Args:
        texts: what plain decoding makes of the prompts, these included, without padding.
    """

    one_hot_proposals = True
    branches = True

    def __init__(self, texts: list[list[int]], vocab_size: int, seed: int = 0, num_nodes: int = 9):
        self.texts, self.vocab_size, self.num_nodes = texts, vocab_size, num_nodes
        self.random = random.Random(seed)
        self.num_branching = 0

    def propose(self, batch, num_tokens, schedule, sampler):
        assert self.may_branch
        known = [next((t for t in self.texts if t[: len(text)] == text), text) for text in batch.history]
        num_nodes = min(self.num_nodes, max(num_tokens))
        trees = [self._tree(text[len(own) :], num_nodes) for own, text in zip(batch.history, known, strict=True)]
        tokens, parents, counts = zip(*trees, strict=True)
        self.num_branching += any(len(set(row)) < len(row) for row in parents)
        depth = max(map(depth_of, parents))
        return hs.Draft(torch.tensor(tokens), None, torch.tensor(counts), torch.tensor(parents), depth)

    def _tree(self, right: list[int], num_nodes: int):
        parents = random_parents(num_nodes, self.random)
        tokens, is_right = [], []
        for i, parent in enumerate(parents):
            depth = len(path_to(parents, i))
            may_be = (parent < 0 or is_right[parent]) and depth <= len(right)
            is_given = may_be and self.random.random() < 0.7
            token = right[depth - 1] if is_given else self.random.randrange(self.vocab_size)
            tokens.append(token)  # siblings may repeat each other
            is_right.append(may_be and token == right[depth - 1])
        return tokens, parents, self.random.randint(num_nodes // 2, num_nodes)


class DrawingDrafter(hs.Drafter):
    """Draws trees of one shape, siblings without replacement, from a table of what follows a token.

    Args:
        logits: `(vocab, vocab)`.
        parents: of the tree's nodes.
    """

    branches = True

    def __init__(self, logits: torch.Tensor, parents: list[int]):
        self.logits, self.parents = logits, parents

    def propose(self, batch, num_tokens, schedule, sampler):
        assert self.may_branch
        newest = batch.tokens.gather(1, batch.lengths[:, None] - 1)
        tokens, probs = [], []
        for node, parent in enumerate(self.parents):
            way = [tokens[i] for i in path_to(self.parents, parent)]
            if way:
                batch.put(torch.cat(way, 1))
            last = (way or [newest])[-1][:, 0]
            q = sampler.probs(sampler.draft_scores(batch, self.logits[last], len(way)))
            for elder in range(node):
                if self.parents[elder] == parent:
                    q = q.scatter(1, tokens[elder], 0)
            q = q / q.sum(1, keepdim=True).clamp(min=1e-30)
            tokens.append(sampler.categorical(q[:, None]))
            probs.append(q)
        parents = torch.tensor(self.parents).expand(len(newest), -1)
        counts = torch.tensor([len(self.parents) if num else 0 for num in num_tokens])
        return hs.Draft(torch.cat(tokens, 1), torch.stack(probs, 1), counts, parents, depth_of(self.parents))


def dynamic_tree(probs, top_k: int, depth: int, num_nodes: int) -> dict[tuple, float]:
    """EAGLE-2's tree as it is written down: its nodes' paths, the most confident first, with their confidences.

    `probs(path)` is the distribution after a path, `(vocab,)`.
    """
    beams, candidates = {(): 1.0}, {}
    for _ in range(depth):
        level = {}
        for path, confidence in beams.items():
            best = probs(path).topk(top_k)
            following = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            level |= {(*path, token): confidence * prob for token, prob in following}
        candidates |= level
        beams = dict(sorted(level.items(), key=lambda item: -item[1])[:top_k])
    return dict(sorted(candidates.items(), key=lambda item: -item[1])[:num_nodes])


def paths_of(tokens, parents) -> list[tuple]:
    """The tokens on the way to each node of one row."""
    return [tuple(tokens[i] for i in path_to(parents, node)) for node in range(len(tokens))]


def depth_of(parents) -> int:
    return max(len(path_to(parents, node)) for node in range(len(parents)))


def path_to(parents, node: int) -> list[int]:
    return [] if node < 0 else [*path_to(parents, parents[node]), node]


@torch.no_grad()
def plain_logits(model, ids: list[int], pad: int) -> torch.Tensor:
    """What follows `ids` with plain `generate`'s positions, `(vocab,)`: in one pass where attention is causal.

    Args:
        pad: columns in front, which count where a model counts its columns.
    """
    if pad and counts_itself(model):
        mask = torch.tensor([[0] * pad + [1] * len(ids)])
        return model(torch.tensor([[0] * pad + ids]), attention_mask=mask).logits[0, -1]
    sees_later = getattr(model.config.get_text_config(decoder=True), "use_bidirectional_attention", False)
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    step, past = 1 if sees_later else len(ids), None
    for begin in range(0, len(ids), step):
        own = {"position_ids": torch.arange(begin, begin + step)[None]} if takes_positions else {}
        output = model(torch.tensor([ids[begin : begin + step]]), use_cache=True, **{CACHE: past}, **own)
        past = getattr(output, "past_key_values", None)
    return output.logits[0, -1]


@torch.no_grad()
def decoder_logits(model, ids: list[int], inputs: Inputs, row: int) -> torch.Tensor:
    """Those after `ids`, without a cache."""
    given = {name: inputs.model_kwargs.get(name) for name in ("encoder_outputs", "attention_mask")}
    given = tree_map_only(torch.Tensor, lambda part: part[row : row + 1], given)
    return model(decoder_input_ids=torch.tensor([ids]), use_cache=False, **given).logits[0, -1]


@torch.no_grad()
def check_trees(model, inputs: Inputs | None = None, rtol: float = 1e-3, atol: float = 2e-4, make=RaggedModel) -> None:
    """Each node sees its own path and nothing else, and what is kept is a chain again.

    Random branching trees, random paths kept, a row that leaves; a tree fed at once or in two passes.

    Args:
        inputs: of four rows, for a decoder of an encoder.
        make: of a model one with a cache.
    """
    prompts = tiny.prompts(4, vocab_size=model.config.get_text_config(decoder=True).vocab_size)
    padding = (1 - prompts["attention_mask"]).sum(1).tolist()
    if inputs is None:
        batch, cached = Batch(prompts["input_ids"], padding, max_length=60), make(model)
    else:
        batch, cached = Batch(inputs.input_ids, [0] * 4, max_length=60), EncoderDecoderModel(model, inputs)
    generator = random.Random(0)
    cached.prefill(batch)
    for round in range(6):
        num_rows, n = len(batch.rows), generator.randint(3, 8)
        parents = [random_parents(n, generator) for _ in range(num_rows)]
        tokens = torch.tensor([[generator.randrange(1, tiny.VOCAB) for _ in range(n)] for _ in range(num_rows)])
        draft = hs.Draft(tokens, None, torch.full((num_rows,), n), torch.tensor(parents))
        if round % 2 and cached.takes_levels:  # the first nodes first, as a drafter does that grows the tree
            first = generator.randint(1, n - 1)
            batch.put(draft.tokens[:, :first], tree=Tree(draft.parents[:, :first], first))
            cached.logits(batch, ahead=first, num_last=1)
            batch.put(draft.tokens, tree=draft.tree)
            found, known = cached.logits(batch, ahead=n, num_last=n - first), range(first, n)
        else:
            batch.put(draft.tokens, tree=draft.tree)
            found, known = cached.logits(batch, ahead=n, num_last=n + 1), range(-1, n)
        paths = []
        for row, (length, pad) in enumerate(zip(batch.host_lengths, batch.host_padding, strict=True)):
            for column, node in enumerate(known):
                path = path_to(parents[row], node)
                ids = [*batch.tokens[row, pad:length].tolist(), *draft.tokens[row, path].tolist()]
                fresh = plain_logits(model, ids, pad) if inputs is None else decoder_logits(model, ids, inputs, batch.rows[row])
                torch.testing.assert_close(found[row, column], fresh, rtol=rtol, atol=atol)
            paths.append(path_to(parents[row], generator.randint(-1, n - 1)))
        path = torch.tensor([path + [0] * (n - len(path)) for path in paths])
        num_kept, newest = torch.tensor([*map(len, paths)]), torch.randint(1, tiny.VOCAB, (num_rows,))
        verdict = hs.Verdict(num_kept, newest, path=path)
        chain, verdict, () = along_path(draft, verdict)
        batch.put(chain.tokens)
        batch.append(chain, verdict)
        cached.rollback(batch)
        if round == 3:
            for part in (batch, cached):
                part.select([0, 2, 3])
