"""What training takes of transformers' Trainer that has no documented name."""

from transformers import TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler as LengthGroupedSampler


def keep_to_one_device(args: TrainingArguments) -> None:
    """Let a Trainer without a launcher use one GPU: it would copy the model to all visible ones."""
    args._n_gpu = min(1, args.n_gpu)
