"""Models from one format to another: names, values, metadata and tokenizers."""
