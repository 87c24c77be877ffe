"""One record per model family: all that lbrx knows about it, as data. ``registry.FAMILIES`` lists them."""
