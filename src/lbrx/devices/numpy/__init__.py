"""A reference device: every operation written plainly in NumPy."""
