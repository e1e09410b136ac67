"""Tokenizers: compare vocabularies, align a text in two tokenizers, decode token by token, chat templates."""
