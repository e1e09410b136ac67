"""The number of nodes with the best expected speed, within what a row can still use."""

import torch

from hf_speculative.schedules import BestNodes, Costs
from hf_speculative.types import Batch, Round
from tests.support import tiny
from tests.support.plain import same_as_plain


def test_a_plan_ends_where_a_row_does():
    batch = Batch(torch.ones(3, 8, dtype=torch.long), [0, 0, 0], max_length=12)
    batch.replace_tail([8, 8, 8], [[1], [1, 1], [1, 1, 1]])
    batch.is_unread = False
    assert BestNodes(16).plan(batch) == [2, 1, 0]


def test_a_chain_of_a_draft_model_up_to_the_last_position():
    model = tiny.build("gpt2", n_positions=31)
    options = {"draft_model": tiny.noisy_copy(model), "schedule": BestNodes(16, Costs(0.0, 0.001))}
    same_as_plain(model, tiny.prompts(1), **options)


def test_promises_that_were_not_kept_count_less():
    batch = Batch(torch.ones(1, 8, dtype=torch.long), [0], max_length=99)
    schedule = BestNodes(4, Costs(0.0, 0.2))
    schedule.begin(batch, None)

    def proposed(num_kept):
        (num,) = schedule.num_nodes(batch, [[0.5]])
        if num:
            schedule.update(Round([0], [[1] * (num_kept + 1)], [num], [num_kept], [False], None, None))
        return num

    assert proposed(1) == 1 and [proposed(0) for _ in range(40)][-1] == 0
    schedule.kept = schedule.promised
    assert [proposed(i % 2) for i in range(40)][-1] == 1
