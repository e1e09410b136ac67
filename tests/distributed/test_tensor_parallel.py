"""What ranks tell each other, one part at a time; whole calls are in test_two_ranks."""

import torch

from hf_speculative.distributed.tensor_parallel import AgreedSchedule
from hf_speculative.schedules import ConfidenceStop, Constant


class OfAnotherMind:
    """In place of ranks, the first of which has found the opposite."""

    def __init__(self, all_draft):
        self.all_draft = all_draft

    def broadcast(self, values):
        return ~values


def test_where_drafts_end_is_for_the_first_rank_to_say():
    chances, scores, tokens = torch.tensor([0.9, 0.1]), torch.zeros(2, 3), torch.tensor([0, 1])
    for all_draft in (True, False):
        schedule = AgreedSchedule(OfAnotherMind(all_draft), ConfidenceStop(Constant(3), 0.5))
        assert schedule.should_stop(scores, tokens).tolist() == [not all_draft] * 2
        assert schedule.should_stop_before(chances).tolist() == ([True, False] if all_draft else [False, True])
        assert schedule.should_stop(scores, tokens) is None, "estimates count instead"
