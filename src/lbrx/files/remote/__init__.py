"""Models in buckets, on hubs and on web servers: read by ranges, written by multipart uploads, through fsspec.

fsspec is imported only when a remote path is used.
"""

from typing import TYPE_CHECKING

from lbrx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from lbrx.files.remote.paths import RemotePath as RemotePath
    from lbrx.files.remote.paths import as_path as as_path
    from lbrx.files.remote.paths import is_remote as is_remote
    from lbrx.files.remote.settings import RemoteSettings as RemoteSettings
    from lbrx.files.remote.settings import remote_settings as remote_settings
    from lbrx.files.remote.settings import using_remote as using_remote

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
