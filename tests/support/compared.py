"""A draft model that is watched: what it says from its cache is what it says without."""

from __future__ import annotations

import torch

from hf_speculative.drafting import DraftModel
from hf_speculative.models import RaggedModel

from . import trees


class Compared(DraftModel):
    """A draft model whose logits are compared, each time, with a fresh pass over the text and the path to each node."""

    num_levels = num_rounds = 0

    def __init__(self, model):
        super().__init__(RaggedModel(model))
        self.fresh = model

    def step(self, batch, ahead):
        logits = super().step(batch, ahead)
        self.num_rounds += 1
        for row, (text, length) in enumerate(zip(batch.history, batch.host_lengths, strict=True)):
            self.compare(logits[row], [*text, *batch.tokens[row, length : length + ahead].tolist()])
        return logits

    def level(self, batch, num_nodes, width):
        logits = super().level(batch, num_nodes, width)
        self.num_levels += 1
        for row, (text, length) in enumerate(zip(batch.history, batch.host_lengths, strict=True)):
            parents, nodes = batch.tree.parents[row].tolist(), batch.tokens[row, length : length + num_nodes]
            for column, node in enumerate(range(num_nodes - width, num_nodes)):
                ids = [*text, *nodes[trees.path_to(parents, node)].tolist()]
                if len(ids) <= batch.max_position:  # rows that still have room go further
                    self.compare(logits[row, column], ids)
        return logits

    def compare(self, found, ids):
        torch.testing.assert_close(found, self.fresh(torch.tensor([ids])).logits[0, -1], rtol=1e-4, atol=1e-4)
