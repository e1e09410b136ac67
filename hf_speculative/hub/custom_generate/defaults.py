"""What `generate.py` takes where a call names no source of drafts: written by `hf-speculative export-generate`."""

#: a Hub name, or a subfolder of the model's own repository, as `./draft`
DRAFT_MODEL: str | None = None
#: tokens to draft a round; by default chosen each round, by measured cost
NUM_DRAFT_TOKENS: int | None = None
