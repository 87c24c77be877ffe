"""Faults and power losses at every point of the commands that write: see docs/reliability.md."""
