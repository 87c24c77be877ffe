"""Keys of random streams."""

from __future__ import annotations

from hashlib import blake2b


def stream_key(seed: int, name: str) -> tuple[int, int]:
    """Return the two 32-bit key words of the stream ``name`` under ``seed``. They are the same on every machine.

    >>> stream_key(42, "lm_head.weight")
    (3591731233, 2718635145)
    """
    digest = blake2b(f"{seed}:{name}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
