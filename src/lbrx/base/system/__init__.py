"""The operating system: the one place where macOS and Linux differ.

Everything that a caller needs is listed here; the calls that only macOS has are in ``lbrx.base.system.darwin``.
Advice to the kernel never fails the work: those functions return whether the kernel took the advice.
All other functions raise ``lbrx.errors.FileError`` with the path and the reason.
"""

from lbrx.base.system.files import (
    StrPath,
    expect_access,
    file_error,
    flush_to_disk,
    open_past_cache,
    open_read,
    open_write,
    pread_into,
    preallocate,
    pwrite_all,
    pwrite_past_cache,
    read_ahead,
    seems_cached,
    truncate,
    write_file,
)
from lbrx.base.system.mapping import PinnedMapping, map_readonly, page_bytes
from lbrx.base.system.missing_pages import guarded, guarded_reads
from lbrx.base.system.names import (
    exchange,
    make_directory,
    make_private,
    remove_file,
    remove_tree,
    rename,
    sync_directory,
)
from lbrx.base.system.process import (
    anonymous_bytes,
    available_bytes,
    cache_directory,
    cpu_count,
    gpu_cores,
    has_dot_products,
    is_private,
    performance_cpu_count,
    prefer_performance_cores,
    require_address_space,
    set_accelerate_threads,
)
from lbrx.base.system.sizes import format_bytes, parse_bytes

__all__ = [
    "PinnedMapping",
    "StrPath",
    "anonymous_bytes",
    "available_bytes",
    "cache_directory",
    "cpu_count",
    "exchange",
    "expect_access",
    "file_error",
    "flush_to_disk",
    "format_bytes",
    "gpu_cores",
    "guarded",
    "guarded_reads",
    "has_dot_products",
    "is_private",
    "make_directory",
    "make_private",
    "map_readonly",
    "open_past_cache",
    "open_read",
    "open_write",
    "page_bytes",
    "parse_bytes",
    "performance_cpu_count",
    "pread_into",
    "preallocate",
    "prefer_performance_cores",
    "pwrite_all",
    "pwrite_past_cache",
    "read_ahead",
    "remove_file",
    "remove_tree",
    "rename",
    "require_address_space",
    "seems_cached",
    "set_accelerate_threads",
    "sync_directory",
    "truncate",
    "write_file",
]
