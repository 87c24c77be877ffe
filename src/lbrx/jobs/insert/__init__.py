"""A language model inserted into a vision-language model."""
