"""Where other libraries run generation: transformers' Trainer, lm-eval, Ray Data. One module or folder each."""
