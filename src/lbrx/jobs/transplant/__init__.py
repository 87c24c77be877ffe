"""Tokenizers transplanted: a model with the vocabulary of another one."""
