"""Quantized Hugging Face checkpoints: which scheme, which tensors are parts of a weight, and the weight's values.

``schemes`` has a record for each scheme, ``recognizing`` finds it, and ``weights`` lists the weights under their plain
names. The other modules build the expression of a weight from its parts.
"""
