"""lbrx."""
