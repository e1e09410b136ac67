"""Where other libraries run generation: transformers' Trainer, lm-eval. One folder each."""
