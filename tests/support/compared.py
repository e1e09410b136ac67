"""Drafters that are watched: what they say from their caches is what they say without."""

import torch

from hf_speculative.drafting import DraftModel
from hf_speculative.models import RaggedModel

from . import trees

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def compared(kind, fresh):
    """`kind`, a class of drafters, whose logits are compared, each time, with those of a fresh pass.

    Args:
        fresh: of a text and the draft tokens after it, both lists of ids, the logits `(vocab,)` of what comes next.
    """

    class Compared(kind):
        num_steps = num_levels = 0

        def step(self, batch, ahead):
            logits = super().step(batch, ahead)
            self.num_steps += 1
            for row, (text, length) in enumerate(zip(batch.history, batch.host_lengths, strict=True)):
                path = batch.tokens[row, length : length + ahead].tolist()
                torch.testing.assert_close(logits[row], fresh(text, path), **CLOSE)
            return logits

        def level(self, batch, num_nodes, width):
            logits = super().level(batch, num_nodes, width)
            self.num_levels += 1
            for row, (text, length) in enumerate(zip(batch.history, batch.host_lengths, strict=True)):
                parents, nodes = batch.tree.parents[row].tolist(), batch.tokens[row, length : length + num_nodes]
                for column, node in enumerate(range(num_nodes - width, num_nodes)):
                    path = nodes[trees.path_to(parents, node)].tolist()
                    if len(text) + len(path) <= batch.max_position:  # rows that still have room go further
                        torch.testing.assert_close(logits[row, column], fresh(text, path), **CLOSE)
            return logits

    return Compared


def compare_drafts(monkeypatch, kind, fresh) -> list[int]:
    """Compares each draft of a class of drafters; returns how many tokens were compared, by row.

    Args:
        fresh: of the drafter, a row, its text and the draft tokens behind it, the logits `(places, vocab)` of a fresh pass.
    """
    steps, compared, step, propose = [], [], kind.step, kind.propose

    def stepped(self, *args):
        steps.append(step(self, *args))
        return steps[-1].clone()

    @torch.no_grad()
    def proposed(self, batch, *args):
        steps.clear()
        draft = propose(self, batch, *args)
        for row, (text, n) in enumerate(zip(batch.history, draft.num_tokens.tolist(), strict=True)):
            expected = fresh(self, row, text, draft.tokens[row].tolist())
            torch.testing.assert_close(torch.stack(steps, 1)[row, :n], expected[:n], **CLOSE)
            compared.append(n)
        return draft

    monkeypatch.setattr(kind, "step", stepped)
    monkeypatch.setattr(kind, "propose", proposed)
    return compared


def compared_model(model):
    """A draft model that is."""
    kind = compared(DraftModel, lambda text, path: model(torch.tensor([text + path])).logits[0, -1])
    return kind(RaggedModel(model))
