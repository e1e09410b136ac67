"""What a draft step does beside its pass: counted in operations, not in time."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_speculative.drafting.draft_model import DraftModel
from hf_speculative.models import RaggedModel
from hf_speculative.sampling.logits_processors import Processors
from hf_speculative.sampling.samplers import Greedy
from hf_speculative.schedules import Constant
from hf_speculative.types import Batch
from tests.support import tiny


class Kernels(TorchDispatchMode):
    """Counts operations that compute, by pass: views are free."""

    def __init__(self):
        super().__init__()
        self.counts, self.in_pass = [0], False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[-1] += not (self.in_pass or func.is_view)
        return func(*args, **(kwargs or {}))

    def watch(self, model):
        def begin(module, args):
            self.in_pass = True
            self.counts.append(0)

        def end(module, args, outputs):
            self.in_pass = False

        return [model.register_forward_pre_hook(begin), model.register_forward_hook(end)]


@pytest.mark.parametrize(("lengths", "most"), [([9], 5), ([9, 9, 9], 5), ([9, 7, 8], 10)])
@torch.no_grad()
def test_a_step_does_little_beside_its_pass(draft, lengths, most):
    batch = Batch(tiny.prompts(len(lengths), width=6)["input_ids"], [0] * len(lengths), max_length=40)
    drafter, schedule = DraftModel(RaggedModel(draft)), Constant(4)
    sampler = Greedy(Processors([], len(lengths)), draft.config.vocab_size)
    num_tokens = [4] * len(lengths)
    drafter.begin(batch, sampler)
    drafter.propose(batch, num_tokens, schedule, sampler)
    batch.host_lengths, batch.lengths = lengths, torch.tensor(lengths)
    drafter.rollback(batch)
    kernels = Kernels()
    hooks = kernels.watch(draft)
    with kernels:
        proposal = drafter.propose(batch, num_tokens, schedule, sampler)
    for hook in hooks:
        hook.remove()
    assert proposal.probs is None, "greedy drafts read no distributions"
    assert len(kernels.counts) == 1 + 4
    between = kernels.counts[2:-1]  # the first pass catches up, the last one ends the draft
    assert max(between) <= most, between
