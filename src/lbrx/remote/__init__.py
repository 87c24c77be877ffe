"""Models in buckets, on hubs and behind HTTP: read by ranges, written by multipart uploads, through fsspec.

Nothing here imports fsspec before a remote path is used.
"""

from typing import TYPE_CHECKING

from lbrx.late import late_names

if TYPE_CHECKING:
    from lbrx.remote.paths import RemotePath, as_path, is_remote
    from lbrx.remote.settings import RemoteSettings, remote_settings, using_remote

__all__ = ["RemotePath", "RemoteSettings", "as_path", "is_remote", "remote_settings", "using_remote"]

__getattr__ = late_names(
    __name__,
    {
        "lbrx.remote.paths": ("RemotePath", "as_path", "is_remote"),
        "lbrx.remote.settings": ("RemoteSettings", "remote_settings", "using_remote"),
    },
)
