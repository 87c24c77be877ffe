"""Tests against the real peers: torch, transformers and mergekit. Run by ``make parity``, not by ``make test``."""
