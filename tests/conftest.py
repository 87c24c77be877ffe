"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# A first example may compile a kernel, and machines are shared: how long one takes says nothing.
settings.register_profile("lbrx", deadline=None)
settings.load_profile("lbrx")
