"""Running a plan: shards, checksums, the same bytes on every schedule, and going on after a failure."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.base import system
from lbrx.base.build import build
from lbrx.errors import FileError, LbrxError, UsageError
from lbrx.files.formats.header import FileLayout, Slot
from lbrx.files.output import slots
from lbrx.files.output.checksum import Checksum
from lbrx.files.output.journal import Journal
from lbrx.files.output.nonfinite import NonFiniteError
from lbrx.files.output.options import Progress
from lbrx.files.output.run import execute
from lbrx.files.output.staging import Staging
from lbrx.jobs.merge.merge import merge, read_and_plan
from lbrx.version import __version__
from support.interrupted_merges import DARE, fail_after, hidden, interrupted
from support.tiny import BF16, LINEAR, directory_bytes, make_llama, random_tensors, read_json, read_model, write_model


@pytest.fixture
def models(folder: Path) -> Path:
    for number, name in enumerate(("a", "b", "base")):
        make_llama(folder / name, number, layers=3)
    return folder


# -- what is written ------------------------------------------------------------------------------------------------


def test_shards_have_an_index_and_no_more_than_their_size(models: Path) -> None:
    merge(LINEAR, "whole")
    merge(LINEAR, "out", max_shard_bytes=1500)
    shards = sorted(path.name for path in (models / "out").glob("*.safetensors"))
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert len(shards) > 3
    index = read_json(models / "out/model.safetensors.index.json")
    assert set(index["weight_map"].values()) == set(shards)
    whole, sharded = read_model(models / "whole"), read_model(models / "out")
    assert index["metadata"]["total_size"] == sum(values.nbytes for values in whole.values())
    assert whole.keys() == sharded.keys()
    for name, values in whole.items():
        np.testing.assert_array_equal(sharded[name], values)
    assert hidden(models) == []


def test_the_checksums_are_those_of_the_tensors_in_the_file(models: Path) -> None:
    merge(LINEAR, "out")
    written = read_json(models / "out/lbrx.checksums.json")["tensors"]
    for name, values in read_model(models / "out").items():
        checksum = Checksum(values.nbytes)
        checksum.add(0, values.reshape(-1).view(np.uint8))
        assert written.pop(name) == checksum.hexdigest()
    assert written == {}


def test_the_same_bytes_on_any_schedule(folder: Path) -> None:
    shapes = {"big": (300, 1000), "odd": (7, 33333), "small": (5,), "model.layers.0.w": (64, 64)}
    for number, name in enumerate(("a", "b", "base")):
        write_model(folder / name, random_tensors(shapes, number, BF16), None)
    merge(DARE, "one", threads=1, seed=3)
    expected = directory_bytes(folder / "one")
    for number, (threads, chunk) in enumerate(((2, None), (5, 1 << 16), (3, 100_000))):
        with lbrx.using(chunk_elements=chunk):
            merge(DARE, f"out{number}", threads=threads, seed=3, memory="64MB")
        assert directory_bytes(folder / f"out{number}") == expected
    merge(DARE, "other", seed=4)
    assert directory_bytes(folder / "other")["model.safetensors"] != expected["model.safetensors"]


def test_more_shards_than_files_that_may_be_open(models: Path) -> None:
    (models / "recipe.yml").write_text(LINEAR)
    code = (
        "import resource, lbrx; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        "print(lbrx.merge('recipe.yml', 'out', max_shard_bytes=1).tensors)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "30\n", done.stderr
    assert len(list((models / "out").glob("*.safetensors"))) == 30


def test_progress_counts_every_tensor_once(models: Path) -> None:
    states: list[Progress] = []
    result = merge(LINEAR, "out", progress=states.append)
    assert [state.done_tensors for state in states] == list(range(1, result.tensors + 1))
    assert {state.tensor for state in states} == set(read_model(models / "out"))
    assert states[-1].done_bytes == states[-1].total_bytes == result.written_bytes


def test_an_empty_tensor_and_a_number_without_axes(folder: Path) -> None:
    for number, name in enumerate("ab"):
        tensors = {"none": np.zeros((0, 4), np.float32), "one": np.array(4.0 * number, np.float32)}
        write_model(folder / name, tensors, None)
    merge(LINEAR, "out")
    found = read_model(folder / "out")
    assert found["none"].shape == (0, 4)
    assert found["one"].shape == ()
    assert found["one"] == 1.0


def test_a_custom_method_from_a_file_beside_the_recipe(folder: Path) -> None:
    (folder / "recipes").mkdir()
    (folder / "recipes/mine.py").write_text(
        "from collections.abc import Sequence\nfrom lbrx import Tensor\n\n"
        "def largest(models: Sequence[Tensor], *, scale: float) -> Tensor:\n"
        "    return models[0].maximum(models[1]) * scale\n"
    )
    a, b = random_tensors({"w": (50,)}, 1), random_tensors({"w": (50,)}, 2)
    write_model(folder / "recipes/a", a, None)
    write_model(folder / "recipes/b", b, None)
    (folder / "recipes/recipe.yml").write_text(
        "merge_method: ./mine.py:largest\nmodels: [{model: a}, {model: b}]\nparameters: {scale: 2}\n"
    )
    merge("recipes/recipe.yml", "out", allow_code=True)
    np.testing.assert_array_equal(read_model(folder / "out")["w"], np.maximum(a["w"], b["w"]) * 2)


# -- values that are not finite -------------------------------------------------------------------------------------


def test_nonfinite_values_are_counted_by_tensor_and_model(models: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    broken = np.ones((12, 8), np.float32)
    broken[0, :3] = np.nan
    broken[5, 5] = -np.inf
    make_llama(models / "b", 2, layers=3, extra={name: broken})
    result = merge(LINEAR, "out")
    assert result.nonfinite == {name: {"b": (3, 1), "result": (3, 1)}}
    with pytest.raises(NonFiniteError) as caught:
        merge(LINEAR, "strict", strict=True)
    assert str(caught.value) == (
        f"tensor '{name}': 3 NaN and 1 infinite values in b; 3 NaN and 1 infinite values in the result; "
        "without --strict this is only reported"
    )
    assert not (models / "strict").exists()


def test_an_overflow_of_the_output_type_is_counted(folder: Path) -> None:
    for name in "ab":
        write_model(folder / name, {"w": np.array([1.0, 1e6], np.float32)}, None)
    assert merge(LINEAR + "dtype: float16\n", "out").nonfinite == {"w": {"result": (0, 1)}}


# -- small tensors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["gguf", "safetensors"])
def test_small_tensors_have_the_same_bytes_alone_and_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    tensors = {f"t{n}": lbrx.tensor(np.arange(n, n + 3 + 2 * n, dtype=np.float32)) + 1 for n in range(9)}
    mixed = {name: tensor.to(("f16", "f32", "i8")[number % 3]) for number, (name, tensor) in enumerate(tensors.items())}
    lbrx.save(f"together.{suffix}", mixed)
    monkeypatch.setattr(slots, "BATCH_BYTES", 0)
    lbrx.save(f"alone.{suffix}", mixed)
    assert (folder / f"together.{suffix}").read_bytes() == (folder / f"alone.{suffix}").read_bytes()


def test_a_batch_leaves_out_what_is_between_its_tensors() -> None:
    sizes = [10, 20, 30, 40, 50]
    all_slots = [Slot(f"t{n}", "u8", (size,), sum(sizes[:n]), size) for n, size in enumerate(sizes)]
    layout = FileLayout("file", b"", tuple(all_slots), 150)
    t0, t1, t2, t3, t4 = all_slots
    assert slots.batches_of([[t0], [t1], [t3], [t4]], layout) == [[[t0], [t1]], [[t3], [t4]]]
    assert slots.batches_of([[t0, t1], [t2]], layout) == [[[t0, t1], [t2]]]
    assert slots.batches_of([[t0, t2], [t3]], layout) == [[[t0, t2]], [[t3]]]
    assert slots.batches_of([[t0], [t1, t3], [t4]], layout) == [[[t0]], [[t1, t3]], [[t4]]]


def test_a_value_that_is_not_finite_is_found_in_a_batch(folder: Path) -> None:
    tensors = {f"t{n}": lbrx.tensor(np.full(3, np.nan if n == 2 else n, np.float32)) for n in range(5)}
    with pytest.raises(NonFiniteError, match="tensor 't2': 3 NaN"):
        lbrx.save("out.safetensors", tensors, strict=True)
    assert not (folder / "out.safetensors").exists()


# -- going on -------------------------------------------------------------------------------------------------------


def test_a_full_disk_and_the_same_command_again(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merge(DARE, "undisturbed")
    with monkeypatch.context() as patch:
        fail_after(patch, 9)
        with pytest.raises(FileError, match="disk full"):
            merge(DARE, "out", threads=1)
    assert hidden(models) == [".out.partial", ".out.partial.journal"]
    assert not (models / "out").exists()
    computed: list[str] = []
    result = merge(DARE, "out", progress=lambda state: computed.append(state.tensor))
    assert result.resumed_tensors == 8  # nine writes, of which one was the header
    assert len(computed) == result.tensors - 8
    assert directory_bytes(models / "out") == directory_bytes(models / "undisturbed")
    assert hidden(models) == []


def test_bytes_that_do_not_match_their_checksum_are_made_again(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merge(LINEAR, "undisturbed")
    interrupted(monkeypatch)
    file = models / ".out.partial/model.safetensors"
    content = bytearray(file.read_bytes())
    journal = (models / ".out.partial.journal").read_text().splitlines()
    first = json.loads(journal[1])["tensor"]
    plan = read_and_plan(LINEAR, "out")
    slot = next(slot for slot in plan.layouts[0].slots if slot.name == first)
    content[slot.offset] ^= 255
    file.write_bytes(content)
    assert execute(plan).resumed_tensors == 10
    assert directory_bytes(models / "out") == directory_bytes(models / "undisturbed")


@pytest.mark.parametrize("end", [b'{"tensor": "mod', b"\x00\x00"])
def test_a_line_that_was_cut_off_is_ignored(models: Path, monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    interrupted(monkeypatch)
    journal = models / ".out.partial.journal"
    journal.write_bytes(journal.read_bytes() + end)
    assert merge(LINEAR, "out").resumed_tensors == 11


def nothing() -> None:
    """Changes no file."""


def other_weights() -> None:
    make_llama(Path("b"), 99, layers=3)


def other_config() -> None:
    config = read_json(Path("a/config.json")) | {"rope_theta": 5}
    Path("a/config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("change", "recipe", "options", "difference"),
    [
        (nothing, LINEAR + "# a comment\n", {}, "the recipe is another"),
        (nothing, LINEAR, {"seed": 5}, "the seed was 0 and is 5"),
        (nothing, LINEAR, {"max_shard_bytes": 2000}, "the layout of the output's files (--shard-size) is another"),
        (other_weights, LINEAR, {}, "b/model.safetensors' was changed"),
        (other_config, LINEAR, {}, "the file of the output 'config.json' was changed"),
    ],
)
def test_unfinished_work_of_another_merge_is_not_touched(
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[], None],
    recipe: str,
    options: dict[str, Any],
    difference: str,
) -> None:
    interrupted(monkeypatch)
    change()
    with pytest.raises(UsageError) as caught:
        merge(recipe, "out", **options)
    message = str(caught.value)
    assert message.startswith(".out.partial: holds the unfinished work of another run: the ")
    assert difference in message
    assert message.endswith("; run that one again to finish it, or give --restart to discard it")
    assert merge(recipe, "out", restart=True, **options).resumed_tensors == 0
    assert hidden(models) == []


def test_a_method_that_failed_at_its_first_tensor_can_be_mended(models: Path) -> None:
    """Nothing was finished, so nothing of the other plan is lost."""
    recipe = "merge_method: ./blend.py:blend\ndtype: bfloat16\nmodels: [{model: a}, {model: b}]\n"
    (models / "recipe.yml").write_text(recipe)
    (models / "blend.py").write_text("def blend(models):\n    return models[7]\n")
    with pytest.raises(LbrxError, match=r"blend\.py:2"):
        merge("recipe.yml", "out", allow_code=True)
    (models / "blend.py").write_text("def blend(models):\n    return (models[0] + models[1]) * 0.5\n")
    merge("recipe.yml", "out", allow_code=True)
    assert hidden(models) == []


def test_an_input_that_changes_while_it_is_read(models: Path) -> None:
    def touch(state: Progress) -> None:
        if state.done_tensors == state.total_tensors:
            (models / "b/model.safetensors").touch()

    with pytest.raises(FileError, match=r"b/model.safetensors' was changed while it was read; run it again with"):
        merge(LINEAR, "out", progress=touch)
    assert not (models / "out").exists()


@pytest.mark.usefixtures("models")
def test_identities_are_those_of_earlier_journals() -> None:
    """An unfinished run can be resumed after a change of the source that does not change the output."""
    identity = read_and_plan(LINEAR, "out").identity({})
    assert list(identity) == [
        "recipe",
        "seed",
        "adapter file",
        "method file",
        "vocabulary",
        "version of lbrx",
        "input file",
        "layout of the output's files (--shard-size)",
        "file of the output",
    ]
    assert identity["recipe"] == "68538ca86a0034de"
    assert identity["vocabulary"] == "2d06800538d394c2"
    assert identity["layout of the output's files (--shard-size)"] == "9915019258c00451"


def rewrite_identity(journal: Path, **changes: Any) -> None:
    """Change the first line of a journal."""
    first, rest = journal.read_text().split("\n", 1)
    journal.write_text(json.dumps(json.loads(first) | changes) + "\n" + rest)


def test_unfinished_work_of_another_version(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch)
    journal = models / ".out.partial.journal"
    identity = json.loads(journal.read_text().splitlines()[0])["plan"]
    rewrite_identity(journal, plan=identity | {"version of lbrx": "0.0.9", "recipe": "of another form"})
    with pytest.raises(UsageError) as caught:
        merge(LINEAR, "out")
    assert str(caught.value) == (
        ".out.partial: holds the unfinished work of another run: the version of lbrx was 0.0.9 and is "
        f"{build()}; run that one again to finish it, or give --restart to discard it"
    )
    assert merge(LINEAR, "out", restart=True).resumed_tensors == 0


def test_unfinished_work_of_another_build_of_this_version(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sources may compute in another way."""
    interrupted(monkeypatch)
    journal = models / ".out.partial.journal"
    identity = json.loads(journal.read_text().splitlines()[0])["plan"]
    assert identity["version of lbrx"] == build()
    rewrite_identity(journal, plan=identity | {"version of lbrx": f"{__version__} (sources 0123456789ab)"})
    with pytest.raises(UsageError, match=rf"was {__version__} \(sources 0123456789ab\) and is {re.escape(build())};"):
        merge(LINEAR, "out")


@pytest.mark.usefixtures("models")
def test_unfinished_work_of_another_precision_of_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch)
    with lbrx.using(activation_bits=8), pytest.raises(UsageError) as caught:
        merge(LINEAR, "out")
    assert "the precision of activations (--activation-bits) is another" in str(caught.value)
    assert merge(LINEAR, "out").resumed_tensors > 0


@pytest.mark.parametrize("has_lost_target", [False, True])
def test_a_journal_of_another_format(models: Path, monkeypatch: pytest.MonkeyPatch, has_lost_target: bool) -> None:
    interrupted(monkeypatch)
    journal = models / ".out.partial.journal"
    rewrite_identity(journal, version=0)
    journal.write_text(journal.read_text() + '{"done": "something"}\n')
    if has_lost_target:
        shutil.copytree(models / "a", models / ".out.replaced")
    with pytest.raises(UsageError) as caught:
        merge(LINEAR, "out", overwrite=True)
    assert str(caught.value) == (
        ".out.partial.journal: was written by another version of lbrx (journal format 0; expected 1); "
        "finish the run with that version, or give --restart to discard its work"
    )
    assert merge(LINEAR, "out", restart=True, overwrite=True).resumed_tensors == 0
    assert hidden(models) == []


def test_a_method_that_changed_after_some_tensors(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "BATCH_BYTES", 0)
    recipe = "merge_method: ./blend.py:blend\ndtype: bfloat16\nmodels: [{model: a}, {model: b}]\n"
    (models / "recipe.yml").write_text(recipe)
    (models / "blend.py").write_text("def blend(models):\n    return models[0]\n")

    def stop(state: Progress) -> None:
        if state.done_tensors == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge("recipe.yml", "out", allow_code=True, threads=1, progress=stop)
    (models / "blend.py").write_text("def blend(models):\n    return models[1]\n")
    with pytest.raises(UsageError, match=r"the method file '\./blend\.py:blend' was changed"):
        merge("recipe.yml", "out", allow_code=True)
    (models / "blend.py").write_text("def blend(models):\n    return models[0]\n")
    assert merge("recipe.yml", "out", allow_code=True).resumed_tensors == 5


def test_a_journal_that_is_none(models: Path) -> None:
    (models / ".out.partial.journal").write_text("something else\n")
    with pytest.raises(FileError, match="is not a journal of a run; remove it or use --restart"):
        merge(LINEAR, "out")
    merge(LINEAR, "out", restart=True)


@pytest.mark.usefixtures("models")
def test_two_merges_into_one_output_at_once() -> None:
    with Journal(Staging(Path("out")).journal), pytest.raises(UsageError, match="another run into the same output"):
        merge(LINEAR, "out")


def test_an_output_is_replaced_only_at_the_end_and_only_if_allowed(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(LINEAR, "out")
    before = directory_bytes(models / "out")
    with pytest.raises(FileError, match=r"^out: exists and is not empty; --overwrite replaces it$"):
        merge(DARE, "out")
    assert hidden(models) == []
    with monkeypatch.context() as patch:
        fail_after(patch, 5)
        with pytest.raises(FileError):
            merge(DARE, "out", overwrite=True)
    assert directory_bytes(models / "out") == before
    merge(DARE, "out", overwrite=True)
    assert directory_bytes(models / "out").keys() == before.keys()
    assert directory_bytes(models / "out") != before
    assert hidden(models) == []


def test_an_input_cannot_be_the_output(models: Path) -> None:
    before = (models / "a/model.safetensors").read_bytes()
    with pytest.raises(UsageError, match="is the input"):
        merge(LINEAR, "a", overwrite=True)
    assert (models / "a/model.safetensors").read_bytes() == before


@pytest.mark.parametrize(("exchanges", "changes"), [(True, 0), (True, 1), (False, 0), (False, 1), (False, 2)])
def test_a_kill_between_the_last_changes_of_names(
    models: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool, changes: int
) -> None:
    merge(DARE, "undisturbed")
    merge(LINEAR, "out")
    remove_tree, done = system.remove_tree, 0

    def limited(original: Callable[[Path, Path], Any]) -> Callable[[Path, Path], Any]:
        def change(first: Path, second: Path) -> Any:
            nonlocal done
            if done == changes:
                raise KeyboardInterrupt
            done += 1
            return original(first, second)

        return change

    def limited_removal(path: Path) -> None:
        if done == (1 if exchanges else 2):
            raise KeyboardInterrupt
        remove_tree(path)

    with monkeypatch.context() as patch:
        patch.setattr(system, "rename", limited(system.rename))
        patch.setattr(system, "exchange", limited(system.exchange) if exchanges else lambda *_: False)
        patch.setattr(system, "remove_tree", limited_removal)
        with pytest.raises(KeyboardInterrupt):
            merge(DARE, "out", overwrite=True)
    result = merge(DARE, "out", overwrite=True)
    assert result.resumed_tensors == result.tensors
    assert directory_bytes(models / "out") == directory_bytes(models / "undisturbed")
    assert hidden(models) == []


def test_a_warm_merge_imports_no_compiler(models: Path) -> None:
    merge(LINEAR, "warm-up")
    (models / "recipe.yml").write_text(LINEAR)
    code = (
        "import sys; from lbrx.cli.main import run; assert run(['merge', 'recipe.yml', 'out']) == 0\n"
        "print([name for name in ('numba', 'rich', 'huggingface_hub', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.usefixtures("folder")
def test_a_recipe_that_is_not_there() -> None:
    with pytest.raises(LbrxError, match=r"^no-recipe.yml: the recipe cannot be read: No such file or directory$"):
        merge("no-recipe.yml", "out")
