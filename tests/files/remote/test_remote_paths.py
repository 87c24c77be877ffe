"""Which paths are remote."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbrx.files.remote.paths import SCHEMES, as_path, is_remote


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_local_file_may_be_named_like_a_scheme(scheme: str) -> None:
    for name in (scheme, f"{scheme}:"):
        assert not is_remote(name)
        assert not is_remote(Path(name))
        assert as_path(Path(name)) == Path(name)
    assert is_remote(Path(f"{scheme}:") / "bucket")
