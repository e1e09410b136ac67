"""To and from the Hub: a target that names its draft, a model card, `custom_generate/`, vLLM's settings."""
