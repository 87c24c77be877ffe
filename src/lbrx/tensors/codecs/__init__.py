"""Quantization: encode values as blocks of codes and scales, and decode them.

Every type is a `Codec` record. ``lbrx.registry.CODECS`` lists all of them.
"""
