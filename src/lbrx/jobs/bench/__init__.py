"""What `lbrx bench` measures on CPU and Metal, and the report that it writes."""
