"""Fused passes on Metal: a Program becomes one kernel, and one dispatch for each chunk of its space."""
