"""The Hub: a target that names its draft, a model card, `custom_generate/`, settings for vLLM."""
