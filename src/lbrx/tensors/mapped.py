"""Tensors over files without a format."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.errors import FileError
from lbrx.tensors.coded import stored_bytes
from lbrx.tensors.dtype import DTypeLike
from lbrx.tensors.open_file import FileSource, MmapOptions, OpenFile
from lbrx.tensors.shape import checked_number, checked_shape
from lbrx.tensors.storage import MmapStorage
from lbrx.tensors.tensor import Tensor


def mmap_tensor(
    path: FileSource,
    shape: Sequence[int] | int,
    dtype: DTypeLike,
    offset: int = 0,
    options: MmapOptions = MmapOptions(),  # noqa: B008
) -> Tensor:
    """Map a tensor of a file without a header, from byte ``offset`` on. Nothing is copied.

    ``path`` may also be an open binary file or a descriptor. ``dtype`` is a dtype or a quantization of GGUF. For
    several tensors of one file, map it once with `MmapStorage.from_file` and use `Tensor.from_storage`.

    >>> import lbrx, numpy as np, tempfile
    >>> path = tempfile.mkdtemp() + "/weights.bin"
    >>> np.arange(6, dtype=np.float32).tofile(path)
    >>> lbrx.mmap_tensor(path, (2, 2), "f32", offset=8, options=lbrx.MmapOptions(read_ahead=True)).tolist()
    [[2.0, 3.0], [4.0, 5.0]]
    """
    sizes = checked_shape(shape)
    nbytes, offset = stored_bytes(dtype, sizes), checked_number(offset, "the offset")
    file = OpenFile(path)
    if offset < 0 or offset + nbytes > file.file_bytes:
        raise FileError(
            f"{file.path}: a tensor of {dtype} and shape {sizes} needs {nbytes} bytes from byte {offset}, "
            f"but the file has {file.file_bytes}"
        )
    file.apply(options, offset, nbytes)
    return Tensor.from_storage(MmapStorage(file, offset, nbytes), dtype, sizes)
