"""One record per model family: everything lbrx knows about it, as data. ``registry.FAMILIES`` lists them."""
