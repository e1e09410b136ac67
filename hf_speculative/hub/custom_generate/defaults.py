"""What `generate.py` takes where a call names no source of drafts: written by `hf-speculative export-generate`."""

#: a Hub name, or a subfolder of the model's own repository, as `./draft`
DRAFT_MODEL: str | None = None
#: a method that needs no model, alone or beside it, as `suffix`
METHOD: str | None = None
#: of `SpeculativeConfig`, by name
SETTINGS: dict = {}
