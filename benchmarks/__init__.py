"""Benchmarks: every figure is a ratio to a peer or to the machine's limit, measured side by side in one run."""
