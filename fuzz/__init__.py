"""Fuzzing of every reader: ``make fuzz``. docs/fuzzing.md explains it."""
