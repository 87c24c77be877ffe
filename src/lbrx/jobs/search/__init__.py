"""``lbrx.search``: find the recipe whose merge scores best."""
