"""Drafts that end where the draft is unsure: by its own probabilities, or by an estimate that it has of each place."""

import torch

from hf_speculative.interfaces import Schedule
from hf_speculative.schedules import Adaptive, AlignRows, ConfidenceStop, Constant


def test_after_a_token_that_was_unlikely():
    scores = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.5, 0.0]])
    assert ConfidenceStop(Constant(3), 0.6).should_stop(scores, torch.tensor([1, 1])).tolist() == [False, True]


def test_estimates_come_before_probabilities():
    schedule = ConfidenceStop(Constant(3), 0.6)
    unlikely = torch.zeros(2, 3), torch.tensor([1, 1])
    assert AlignRows(schedule).should_stop_before(torch.tensor([0.7, 0.5])).tolist() == [False, True]
    assert schedule.should_stop(*unlikely) is None


class StopsBefore(Schedule):
    def should_stop_before(self, chances):
        return chances < 0.5


def test_who_may_end_drafts_early():
    assert StopsBefore().may_stop and ConfidenceStop(Adaptive(4), 0.5).may_stop and not Adaptive(4).may_stop
    assert Adaptive(4).should_stop_before(torch.ones(2)) is None
