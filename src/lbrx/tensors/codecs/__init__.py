"""Quantization: how values become blocks of codes and scales, and how blocks become values again.

Every type is a `Codec` record; the table of all of them is ``lbrx.registry.CODECS``.
"""
