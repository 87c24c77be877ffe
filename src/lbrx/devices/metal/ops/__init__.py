"""Kernels for models on Metal: one family per module, each dispatched through a MetalContext."""
