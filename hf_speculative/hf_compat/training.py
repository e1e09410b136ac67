"""What training takes of transformers' Trainer that has no documented name."""

from transformers.trainer_pt_utils import LengthGroupedSampler as LengthGroupedSampler
