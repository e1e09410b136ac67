"""The Hub: a target that names its draft, a model card, settings for vLLM."""
