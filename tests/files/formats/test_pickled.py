"""PyTorch files: real ones give their tensors without copies, hostile ones a clear error, and nothing is run."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
import support
from lbrx.files.formats import pickled, pickled_values
from lbrx.tensors.storage import MmapStorage

GOLDEN = support.GOLDEN / "pytorch"
BASE = np.arange(12, dtype=np.float32).reshape(3, 4)
PREFIX = "archive/"


# -- real files -------------------------------------------------------------------------------------------------------


def test_views_of_one_storage() -> None:
    model = lbrx.open(GOLDEN / "views.pt")
    expected = {
        "whole": BASE,
        "transposed": BASE.T,
        "rows": BASE[1:],
        "column": BASE[:, 2],
        "expanded": np.zeros(5, np.float32),
    }
    assert model.format == "pytorch"
    assert set(model) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(model[name].numpy(), values)
        np.testing.assert_array_equal((model[name] + 1).numpy(), values + 1)


def test_elements_are_mapped_and_not_copied() -> None:
    storage = lbrx.open(GOLDEN / "views.pt")["rows"].storage
    assert isinstance(storage, MmapStorage)
    content = (GOLDEN / "views.pt").read_bytes()
    assert content[storage.offset : storage.offset + storage.nbytes] == BASE[1:].tobytes()


def test_every_type() -> None:
    model = lbrx.open(GOLDEN / "types.pt")
    assert {name: tensor.dtype.name for name, tensor in model.items()} == {
        "float64": "f64",
        "float32": "f32",
        "float16": "f16",
        "bfloat16": "bf16",
        "float8_e4m3fn": "f8_e4m3",
        "float8_e5m2": "f8_e5m2",
        "int64": "i64",
        "int32": "i32",
        "int16": "i16",
        "int8": "i8",
        "uint8": "u8",
        "bool": "bool",
    }
    for tensor in model.values():
        np.testing.assert_array_equal(tensor.numpy().astype(np.float64), [0, 1, 1])


def test_state_dict_of_a_module() -> None:
    model = lbrx.open(GOLDEN / "state_dict.bin")
    np.testing.assert_array_equal(model["weight"].numpy(), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(model["bias"].numpy(), [5, 6])


def test_the_model_of_a_training_checkpoint() -> None:
    assert list(lbrx.open(GOLDEN / "training.pt")) == ["w"]


def test_nested_dictionaries_have_dotted_names() -> None:
    model = lbrx.open(GOLDEN / "flat.pt")
    assert set(model) == {"state_dict.w", "optimizer.state.0.m", "scalar"}
    assert float(model["scalar"]) == 2.5
    np.testing.assert_array_equal(model["optimizer.state.0.m"].numpy(), BASE)


def test_directory_with_shards() -> None:
    model = lbrx.open(GOLDEN / "sharded")
    assert model.format == "pytorch-directory"
    assert {name: tensor.shape for name, tensor in model.items()} == {"a": (2, 2), "b": (3,)}


def test_directory_with_one_file_and_config(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes((GOLDEN / "state_dict.bin").read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    model = lbrx.open(tmp_path)
    assert (set(model), model.config) == ({"weight", "bias"}, {"model_type": "x"})


def test_index_may_not_lead_out_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"w": "../x.bin"}}')
    with pytest.raises(lbrx.FormatError, match=r"'../x.bin', expected the plain name of a .bin file"):
        lbrx.open(tmp_path)


def test_saved_as_safetensors(tmp_path: Path) -> None:
    lbrx.save(tmp_path / "a.safetensors", lbrx.open(GOLDEN / "views.pt"))
    np.testing.assert_array_equal(lbrx.open(tmp_path / "a.safetensors")["transposed"].numpy(), BASE.T)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("module.pt", r"names 'torch.nn.modules.linear.Linear', which is not called"),
        ("complex.pt", "names 'torch.ComplexFloatStorage', which is not called"),
    ],
)
def test_other_files_of_pytorch(name: str, message: str) -> None:
    with pytest.raises(lbrx.FormatError, match=message):
        lbrx.open(GOLDEN / name)


def test_files_from_before_1_6() -> None:
    """Elements follow pickles of any length, so that they are not aligned."""
    np.testing.assert_array_equal(lbrx.open(GOLDEN / "legacy.pt")["w"].numpy(), BASE)
    model = lbrx.open(GOLDEN / "legacy_views.pt")
    assert set(model) == {"bytes", "half", "turned", "row"}
    np.testing.assert_array_equal(model["bytes"].numpy(), [0, 1, 2])
    np.testing.assert_array_equal(model["half"].numpy(), BASE.astype(np.float16))
    np.testing.assert_array_equal((model["turned"] * 2).numpy(), 2 * BASE.T)
    np.testing.assert_array_equal(model["row"].numpy(), BASE[1])
    assert model["turned"].expr.storage.offset % 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-1], r"ends at byte \d+, but the file has"),
        (lambda content: content[:30], "is not a pickle"),
        (lambda content: content.replace(b"\xe9\x03", b"\xe8\x03", 1), "is of version 1000 of PyTorch's old format"),
        (lambda content: content.replace(b"FloatStorage", b"BloatStorage"), "names 'torch.BloatStorage'"),
    ],
)
def test_damaged_files_from_before_1_6(change: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(change((GOLDEN / "legacy_views.pt").read_bytes()))
    with pytest.raises(lbrx.FormatError, match=message):
        lbrx.open(tmp_path / "a.pt")


# -- archives made here -----------------------------------------------------------------------------------------------


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as made:
        for name, content in members.items():
            made.writestr(PREFIX + name, content)
    return buffer.getvalue()


class Call:
    """Pickled as a call of a function named by its place."""

    def __init__(self, module: str, name: str, *arguments: Any) -> None:
        self.module, self.name, self.arguments = module, name, arguments


class Storage:
    """Pickled as a reference to a storage."""

    def __init__(self, storage_type: str, key: Any, elements: Any) -> None:
        self.storage_type, self.key, self.elements = storage_type, key, elements


def program(value: Any) -> bytes:
    """A pickle of a value, with calls and storages, in protocol 2."""
    return b"\x80\x02" + _written(value) + b"."


def _written(value: Any) -> bytes:
    if isinstance(value, Call):
        return f"c{value.module}\n{value.name}\n".encode() + _written(tuple(value.arguments)) + b"R"
    if isinstance(value, Storage):
        name = f"ctorch\n{value.storage_type}\n".encode()
        return b"(" + _written("storage") + name + b"".join(map(_written, (value.key, "cpu", value.elements))) + b"tQ"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_written, value)) + b"t"
    if isinstance(value, dict):
        return b"}(" + b"".join(_written(part) for item in value.items() for part in item) + b"u"
    return pickle.dumps(value, 2)[2:-1]


def tensor(
    shape: Any = (2, 3), strides: Any = (3, 1), offset: Any = 0, storage_type: str = "FloatStorage", elements: Any = 6
) -> Call:
    storage = Storage(storage_type, "0", elements)
    return Call("torch._utils", "_rebuild_tensor_v2", storage, offset, shape, strides, False, {})


def checkpoint(value: Any, data: bytes = bytes(24), **members: bytes) -> bytes:
    return archive({"data.pkl": program(value), "data/0": data, **members})


def opened(tmp_path: Path, content: bytes) -> lbrx.Checkpoint:
    (tmp_path / "model.bin").write_bytes(content)
    return lbrx.open(tmp_path / "model.bin")


def test_archive_written_here_is_read(tmp_path: Path) -> None:
    data = np.arange(6, dtype=np.float32)
    model = opened(tmp_path, checkpoint({"w": tensor()}, data.tobytes()))
    np.testing.assert_array_equal(model["w"].numpy(), data.reshape(2, 3))


def test_big_endian_elements(tmp_path: Path) -> None:
    data = np.arange(6, dtype=">f4")
    model = opened(tmp_path, checkpoint({"w": tensor((3, 2), (1, 3))}, data.tobytes(), byteorder=b"big"))
    np.testing.assert_array_equal(model["w"].numpy(), np.arange(6).reshape(2, 3).T)


HOSTILE_CALLS = [
    ("os", "system"),
    ("posix", "system"),
    ("builtins", "eval"),
    ("__builtin__", "getattr"),
    ("builtins", "getattr"),
    ("subprocess", "Popen"),
    ("collections", "OrderedDict.fromkeys"),
    ("collections", "namedtuple"),
    ("torch", "load"),
    ("torch._utils", "_rebuild_tensor_v2.__globals__"),
    ("torch.serialization", "os.system"),
    ("lbrx.files.formats.pickled_values", "pickle"),
    ("copyreg", "_reconstructor"),
]


@pytest.mark.parametrize(("module", "name"), HOSTILE_CALLS)
def test_a_call_is_refused_and_not_made(module: str, name: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with pytest.raises(lbrx.FormatError, match=rf"names '{module}.{name}', which is not called"):
        opened(tmp_path, checkpoint({"w": tensor(), "x": Call(module, name, f"touch {marker}")}))
    assert not marker.exists()


def test_names_from_the_stack_are_looked_up_in_the_same_table(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path}/marker",)

    content = archive({"data.pkl": pickle.dumps({"w": Runs()}, 4), "data/0": bytes(24)})
    with pytest.raises(lbrx.FormatError, match=r"names '(posix|nt)\.system', which is not called"):
        opened(tmp_path, content)
    assert not (tmp_path / "marker").exists()


NESTED: Any = {"w": tensor()}
for _ in range(40):
    NESTED = {"a": NESTED}
DOUBLED = b"\x80\x02}q\x00" + b"".join(
    b"}(X\x01\0\0\0ah%cX\x01\0\0\0bh%cuq%c" % (level, level, level + 1) for level in range(15)
)

HUGE = 2**31
# One long list, copied again and again: few bytes that ask for much memory.
COPIED_SIZES = b"\x80\x02](" + b"K\1" * 10_000 + b"eq\0" + b"ctorch\nSize\nq\1" + b"h\1h\0\x85R" * 10_000 + b"."
COPIED_DICTIONARIES = (
    b"\x80\x02](" + b"K\1N\x86" * 1000 + b"eq\0ccollections\nOrderedDict\nq\1" + b"h\1h\0\x85R" * 10_000 + b"."
)
SHARED_NAMES = (
    b"\x80\x02}(X"
    + struct.pack("<I", 4000)
    + b"x" * 4000
    + b"}("
    + b"".join(b"M" + struct.pack("<H", number) + b"}" for number in range(20_000))
    + b"uu."
)

BROKEN: list[tuple[str, Callable[[], bytes], str]] = [
    ("not a zip", lambda: b"PK\3\4" + bytes(100), "zip archive without an end"),
    ("end only", lambda: b"PK\3\4" + archive({})[-22:], "without a pickle 'data.pkl'"),
    ("cut", lambda: checkpoint({"w": tensor()})[:-30], "without an end"),
    ("no pickle", lambda: archive({"a": b""}), "without a pickle 'data.pkl'"),
    ("script", lambda: checkpoint({}, **{"constants.pkl": b""}), "is a TorchScript program"),
    ("compressed", lambda: archive({"data.pkl": b"." * 99, "data/0": bytes(99)}, zipfile.ZIP_DEFLATED), "compressed"),
    ("no tensors", lambda: checkpoint({"epoch": 3}), "has no dictionary with tensors"),
    ("a list", lambda: checkpoint((1, 2)), "has no dictionary with tensors"),
    ("byte order", lambda: checkpoint({"w": tensor()}, byteorder=b"middle"), "byteorder' is b'middle'"),
    ("empty pickle", lambda: archive({"data.pkl": b""}), "is not a pickle"),
    ("garbage", lambda: archive({"data.pkl": b"\xff\xfe\xfd"}), "is not a pickle"),
    ("stops early", lambda: archive({"data.pkl": b"\x80\x02}"}), "is not a pickle"),
    ("pops nothing", lambda: archive({"data.pkl": b"\x80\x02R."}), "is not a pickle of tensors"),
    ("missing memory", lambda: archive({"data.pkl": b"\x80\x02h\x07."}), "is not a pickle of tensors"),
    ("huge memory", lambda: archive({"data.pkl": b"\x80\x02}r\xff\xff\xff\x7f."}), "memo index 2147483647 for value 1"),
    ("huge text", lambda: archive({"data.pkl": b"\x80\x02X\xff\xff\xff\x7fa."}), "is not a pickle"),
    ("huge bytearray", lambda: archive({"data.pkl": b"\x80\x05\x96" + b"\xff" * 7 + b"\0."}), "is not a pickle"),
    ("extension", lambda: archive({"data.pkl": b"\x80\x02\x82\x01."}), "instruction EXT1 at byte 2"),
    ("new object", lambda: archive({"data.pkl": b"\x80\x02ctorch\nSize\n)\x81."}), "instruction NEWOBJ"),
    ("old instance", lambda: archive({"data.pkl": b"(ios\nsystem\n."}), "instruction INST"),
    (
        "deep lists",
        lambda: archive({"data.pkl": b"\x80\x02" + b"]" * 300_000 + b"a" * 299_999 + b"."}),
        "no dictionary",
    ),
    ("deep dictionaries", lambda: checkpoint(NESTED), "nested deeper"),
    ("doubled dictionaries", lambda: archive({"data.pkl": DOUBLED + b"."}), "no dictionary with tensors"),
    ("state of a type", lambda: _state_of("torch\nFloatStorage"), "not a pickle of"),
    ("state of a call", lambda: _state_of("torch._utils\n_rebuild_tensor_v2"), "is not a pickle of tensors"),
    ("state of the dictionary's type", lambda: _state_of("collections\nOrderedDict"), "is not a pickle of tensors"),
    ("calling a type", lambda: checkpoint({"w": Call("torch", "FloatStorage", 3)}), "is not a pickle of tensors"),
    (
        "parameter of nothing",
        lambda: checkpoint({"w": Call("torch._utils", "_rebuild_parameter", 1)}),
        "is made from 1",
    ),
    (
        "tensor of nothing",
        lambda: checkpoint({"w": Call("torch._utils", "_rebuild_tensor", 1, 0, (), ())}),
        "made from 1",
    ),
    ("key", lambda: checkpoint({(1, 2): tensor()}), r"the key \(1, 2\), expected a name"),
    ("long name", lambda: checkpoint({"x" * 5000: tensor()}), "name has 5000 characters"),
    ("storage is missing", lambda: archive({"data.pkl": program({"w": tensor()})}), "'data/0', which is not in"),
    ("storage is short", lambda: checkpoint({"w": tensor()}, bytes(20)), "has 20 bytes, expected those of 6 elements"),
    (
        "storage of another size",
        lambda: checkpoint({"w": tensor(storage_type="HalfStorage")}),
        "has 24 bytes, expected",
    ),
    ("negative storage", lambda: checkpoint({"w": tensor(elements=-6)}), "expected those of -6 elements"),
    ("huge storage", lambda: checkpoint({"w": tensor(elements=2**62)}), "expected those of 4611686018427387904"),
    ("storage's length is text", lambda: checkpoint({"w": tensor(elements="6")}), "expected the storage of a tensor"),
    ("untyped storage", lambda: checkpoint({"w": tensor(storage_type="UntypedStorage")}), "in a storage of None"),
    (
        "beyond the storage",
        lambda: checkpoint({"w": tensor((3, 3), (3, 1))}),
        "to element 9 of its storage, .* 6",
    ),
    ("stride beyond", lambda: checkpoint({"w": tensor(strides=(2**40, 1))}), "to element 10"),
    ("offset beyond", lambda: checkpoint({"w": tensor(offset=1)}), "to element 7 of its storage"),
    ("offset below", lambda: checkpoint({"w": tensor(offset=-1)}), "offset -1 .*, expected none below 0"),
    ("negative stride", lambda: checkpoint({"w": tensor(strides=(-3, 1), offset=3)}), "expected none below 0"),
    ("negative size", lambda: checkpoint({"w": tensor((-2, 3))}), "has a negative size"),
    ("too many elements", lambda: checkpoint({"w": tensor((2**40, 2**40), (0, 0))}), "more than 2.63"),
    ("expanded to 2^62", lambda: checkpoint({"w": tensor((HUGE, HUGE), (0, 0))}), "more than 2.63 - 1 bytes"),
    ("zero beside a huge size", lambda: checkpoint({"w": tensor((0, 2**62), (0, 0))}), "more than 2.63"),
    ("surrogate", lambda: checkpoint({"\ud800": tensor()}), r"name is '\\ud800', expected text"),
    ("empty dictionaries", lambda: archive({"data.pkl": b"}" * 3_000_000 + b"."}), "more than 2,000,000 lists"),
    ("marks", lambda: archive({"data.pkl": b"(" * 3_000_000 + b"."}), "more than 2,000,000 lists"),
    ("copied sizes", lambda: archive({"data.pkl": COPIED_SIZES}), "expected at most 64 numbers"),
    ("copied dictionaries", lambda: archive({"data.pkl": COPIED_DICTIONARIES}), "more than 2,000,000 lists"),
    ("shared names", lambda: archive({"data.pkl": SHARED_NAMES}), "names have more than 67,108,864 characters"),
    ("sizes of text", lambda: checkpoint({"w": tensor(("2", 3))}), "expected integers"),
    ("shape and strides", lambda: checkpoint({"w": tensor((6,), (3, 1))}), "shape and strides"),
    ("many axes", lambda: checkpoint({"w": tensor((1,) * 65, (0,) * 65)}), "65 dimensions"),
]


def _state_of(name: str) -> bytes:
    """Sets attributes of what a name stands for: through a dictionary of slots, as pickles can."""
    state = b"N}X\x08\0\0\0__call__X\x01\0\0\0xs\x86"
    return archive({"data.pkl": b"\x80\x02c" + name.encode() + b"\n" + state + b"b."})


@pytest.mark.parametrize(("make", "message"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_broken_and_hostile_files(make: Callable[[], bytes], message: str, tmp_path: Path) -> None:
    with pytest.raises(lbrx.FormatError, match=message) as caught:
        opened(tmp_path, make())
    assert str(tmp_path) in str(caught.value), "the message must say which file"
    assert len(str(caught.value)) < 1000


NESTED_KEYS = {
    "doubled": b"}" + b")" + b"q\0h\0\x86" * 60 + b"Ns.",  # t = (t, t): Python takes 2^60 steps to hash it
    "deep": b"}" + b")" + b"\x85" * 1_000_000 + b"Ns.",  # the hash overflows the C stack
}
NESTED_REFERENCES = {"doubled reference": b")" + b"q\0h\0\x86" * 60 + b"Q."}


@pytest.mark.parametrize(
    ("pickled", "message"),
    [(pickled, "no dictionary with tensors") for pickled in NESTED_KEYS.values()]
    + [(pickled, "expected the storage of a tensor") for pickled in NESTED_REFERENCES.values()],
    ids=[*NESTED_KEYS, *NESTED_REFERENCES],
)
def test_nested_tuples_neither_hang_nor_crash(pickled: bytes, message: str, tmp_path: Path) -> None:
    """In a process of its own: a hang in C code ends only with the process."""
    (tmp_path / "model.bin").write_bytes(archive({"data.pkl": b"\x80\x02" + pickled}))
    command = [sys.executable, "-c", "import sys, lbrx; lbrx.open(sys.argv[1])", str(tmp_path / "model.bin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr


def test_keys_that_are_no_names_are_left_out(tmp_path: Path) -> None:
    model = opened(tmp_path, checkpoint({"w": tensor(), (1, 2): "x", 2**70: 3, 1.5: 4, None: 5}))
    assert list(model) == ["w"]


def test_attributes_of_dictionaries_are_dropped(tmp_path: Path) -> None:
    pickled = b"\x80\x02ccollections\nOrderedDict\n)R(X\x01\0\0\0w" + _written(tensor()) + b"u"
    pickled += b"}X\x09\0\0\0_metadata}sb."
    assert list(opened(tmp_path, archive({"data.pkl": pickled, "data/0": bytes(24)}))) == ["w"]


def test_a_pickle_cannot_change_the_table() -> None:
    for found in pickled_values._KNOWN.values():
        with pytest.raises(AttributeError):
            found.anything = 1
        assert not hasattr(found, "__dict__")


# -- archives changed byte by byte ------------------------------------------------------------------------------------


def changed(content: bytes, place: int, raw: bytes) -> bytes:
    return content[:place] + raw + content[place + len(raw) :]


def directory_entry(content: bytes, name: str) -> int:
    """Where the entry of a member begins in the directory."""
    place = content.index(b"PK\x01\x02")
    while content[place + 46 : place + 46 + len(name)] != name.encode():
        place = content.index(b"PK\x01\x02", place + 4)
    return place


@pytest.mark.parametrize(
    ("field", "raw", "message"),
    [
        (8, struct.pack("<H", 1), "is encrypted"),
        (10, struct.pack("<H", 8), r"is compressed \(method 8\)"),
        (20, struct.pack("<I", 12), "is compressed"),
        (20, struct.pack("<II", 1 << 30, 1 << 30), "but members end at byte"),
        (20, struct.pack("<I", 0xFFFFFFFF), "lacks the sizes"),
        (28, struct.pack("<H", 60_000), "cut off after 1 members"),
        (42, struct.pack("<I", 0), "overlaps another member"),
        (42, struct.pack("<I", 1 << 30), "begins at byte 1073741824"),
        (42, struct.pack("<I", 131), "has no header of its own|overlaps"),
    ],
)
def test_directory_of_the_archive(field: int, raw: bytes, message: str, tmp_path: Path) -> None:
    content = checkpoint({"w": tensor()})
    entry = directory_entry(content, f"{PREFIX}data/0")
    with pytest.raises(lbrx.FormatError, match=message):
        opened(tmp_path, changed(content, entry + field, raw))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (b"\x01\x00\xff\x00abcd", "directory is broken: Corrupt extra field"),
        (bytes(5000), "5000 extra bytes, expected at most 4096"),
    ],
)
def test_extra_fields_of_the_directory(extra: bytes, message: str, tmp_path: Path) -> None:
    content = checkpoint({"w": tensor()})
    entry = directory_entry(content, f"{PREFIX}data/0")
    end = len(content) - 22
    longer = changed(content, entry + 30, struct.pack("<H", len(extra)))
    longer = longer[:end] + extra + longer[end:]
    longer = changed(longer, len(longer) - 22 + 12, struct.pack("<I", len(longer) - 22 - longer.index(b"PK\x01\x02")))
    with pytest.raises(lbrx.FormatError, match=message):
        opened(tmp_path, longer)


def test_a_directory_of_a_later_version_of_zip(tmp_path: Path) -> None:
    content = checkpoint({"w": tensor()})
    entry = directory_entry(content, f"{PREFIX}data/0")
    with pytest.raises(lbrx.FormatError, match=r"directory is broken: zip file version 6\.4"):
        opened(tmp_path, changed(content, entry + 6, struct.pack("<H", 64)))


@pytest.mark.parametrize(
    ("field", "raw", "message"),
    [
        (4, struct.pack("<H", 1), "part 1 of an archive"),
        (10, struct.pack("<H", 3), "has 2 members, expected 3"),
        (12, struct.pack("<I", 10), "is broken after 0 members"),
        (12, struct.pack("<I", 1 << 31), "directory of 2147483648 bytes"),
        (16, struct.pack("<I", 1 << 20), "directory ends at byte"),
    ],
)
def test_end_of_the_archive(field: int, raw: bytes, message: str, tmp_path: Path) -> None:
    content = checkpoint({"w": tensor()})
    with pytest.raises(lbrx.FormatError, match=message):
        opened(tmp_path, changed(content, len(content) - 22 + field, raw))


def test_pickle_with_a_wrong_checksum(tmp_path: Path) -> None:
    content = checkpoint({"w": tensor()})
    place = content.index(b"_rebuild_tensor_v2")
    with pytest.raises(lbrx.FormatError, match="does not match its checksum"):
        opened(tmp_path, changed(content, place, b"_rebuild_tensor_v3"))


def test_every_cut_and_flipped_byte_is_an_error_or_a_model(tmp_path: Path) -> None:
    """Whatever is done to the bytes: a model that is bounded by the file, or one kind of error."""
    content = checkpoint({"w": tensor()})
    for place in range(0, len(content), 3):
        for broken in (content[:place], changed(content, place, bytes([content[place] ^ 0xFF]))):
            try:
                found = opened(tmp_path, broken)
            except lbrx.FormatError:
                continue
            assert found["w"].shape == (2, 3)


def test_a_pickle_above_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MAX_PICKLE_BYTES", 10)
    with pytest.raises(lbrx.FormatError, match="expected at most 10"):
        opened(tmp_path, checkpoint({"w": tensor()}))
