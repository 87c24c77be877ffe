"""Models in buckets, on hubs and behind HTTP: read by ranges, written by multipart uploads, through fsspec.

Nothing here imports fsspec before a remote path is used.
"""

from lbrx.remote.paths import RemotePath, as_path, is_remote
from lbrx.remote.settings import RemoteSettings, remote_settings, using_remote

__all__ = ["RemotePath", "RemoteSettings", "as_path", "is_remote", "remote_settings", "using_remote"]
