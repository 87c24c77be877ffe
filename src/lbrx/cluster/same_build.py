"""A check that workers have the build of the driver: another one may compute other bytes."""

from __future__ import annotations

import socket

from lbrx.base.build import build
from lbrx.cluster.options import ClusterError


def check_build(expected: str) -> None:
    """On a worker: raise if lbrx is not of the build of the driver.

    >>> check_build(build())
    """
    if build() != expected:
        raise ClusterError(
            f"{socket.gethostname()} has lbrx {build()}, but the driver has {expected}; "
            "expected the same build on every node"
        )
