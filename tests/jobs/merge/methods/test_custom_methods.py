"""Methods from a user's Python file: what the signature means, how they run, and what goes wrong."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx import tensor
from lbrx.cli.main import run
from lbrx.errors import FileError, ShapeError, UsageError
from lbrx.jobs.merge.merge import read_and_plan
from lbrx.jobs.merge.methods import MergeContext, TensorParameters, load_method, method_lookup
from lbrx.jobs.merge.methods.parameters import REQUIRED
from lbrx.jobs.merge.plan import plan_merge
from lbrx.jobs.merge.recipe import FrozenMap, RecipeError, load_recipes, parse_recipes, resolve_tensor

BLEND = '''
from __future__ import annotations

from collections.abc import Sequence

from lbrx import Tensor
from lbrx.jobs.merge.merge import read_and_plan
from lbrx.jobs.merge.methods import MergeContext


def blend(
    base: Tensor,
    models: Sequence[Tensor],
    *,
    context: MergeContext,
    strength: Sequence[float] = (1.0,),
    limit: float,
    rounds: int = 1,
    lambda_: float = 1,
    mode: str = "clip",
) -> Tensor:
    """Differences from the base, none of them larger than a limit."""
    result = base
    for model, share in zip(models, strength, strict=True):
        result = result + lambda_ * share * (model - base).clip(-limit, limit)
    return result
'''

RECIPE = """
merge_method: ./blend.py:blend
base_model: base
models:
  - model: a
    parameters: {strength: 0.5}
  - model: b
parameters: {limit: [1, 3], lambda: 2}
"""

NO_PARAMETERS = TensorParameters(FrozenMap(), (FrozenMap(),))


def written(folder: Path, source: str, name: str = "blend.py") -> Path:
    folder.joinpath(name).write_text(source)
    return folder


def test_the_signature_describes_the_parameters(tmp_path: Path) -> None:
    spec = load_method("./blend.py:blend", written(tmp_path, BLEND)).spec
    assert spec.needs_base == "required"
    described = [(found.name, found.type, found.default, found.per_model) for found in spec.parameters]
    assert described == [
        ("strength", "float", 1.0, True),
        ("limit", "float", REQUIRED, False),
        ("rounds", "int", 1, False),
        ("lambda", "float", 1.0, False),
        ("mode", "str", "clip", False),
    ]


def test_a_recipe_runs_a_method_of_its_own(tmp_path: Path) -> None:
    written(tmp_path, BLEND)
    path = tmp_path / "recipe.yml"
    path.write_text(RECIPE)
    (recipe,) = load_recipes(path, lookup=method_lookup(tmp_path, allow_code=True))
    method = load_method(recipe.method, tmp_path)
    parameters = resolve_tensor(
        recipe, method.spec, module="default", slice_index=0, input_names=["w"] * 3, output_name="w", t=0.5
    )
    base, a, b = (np.array(values, np.float32) for values in ([1, 1], [2, 9], [0, -9]))
    merged = method.merge([tensor(a), tensor(b), tensor(base)], 2, parameters, MergeContext("w")).numpy()
    np.testing.assert_array_equal(merged, base + 2 * (0.5 * np.clip(a - base, -2, 2) + np.clip(b - base, -2, 2)))


def test_misspelt_parameters_of_a_custom_method_are_found_in_the_recipe(tmp_path: Path) -> None:
    written(tmp_path, BLEND)
    path = tmp_path / "recipe.yml"
    path.write_text(RECIPE.replace("strength", "strenght"))
    with pytest.raises(RecipeError, match=r"recipe.yml:6: unknown parameter 'strenght'.*did you mean 'strength'"):
        load_recipes(path, lookup=method_lookup(tmp_path, allow_code=True))


@pytest.mark.parametrize(
    ("signature", "needs_base"),
    [
        ("models", "ignored"),
        ("models, base", "required"),
        ("models, base=None", "optional"),
        ("base: 'lbrx.Tensor | None', models", "optional"),
    ],
)
def test_base_in_the_signature(tmp_path: Path, signature: str, needs_base: str) -> None:
    written(tmp_path, f"import lbrx\ndef first({signature}): return models[0]")
    assert load_method("./blend.py:first", tmp_path).spec.needs_base == needs_base


def test_limits_in_the_signature_hold_for_the_recipe(tmp_path: Path) -> None:
    models, share = "Annotated[list[Tensor], Limits(2)]", "Annotated[Sequence[float], Limits(0, 1)]"
    source = f"def blend(models: {models}, share: {share} = (0.5,)): return models[0]"
    imports = "from typing import Annotated\nfrom collections.abc import Sequence\nfrom lbrx import Tensor\n"
    written(tmp_path, f"{imports}from lbrx.jobs.merge.methods import Limits\n{source}")
    recipe = "merge_method: ./blend.py:blend\nmodels:\n  - model: a\n    parameters: {share: %s}\n%s"
    for share, other, problem in (
        ("2", "  - model: b", "'share' must be between 0 and 1, found 2"),
        ("1", "", "takes at least 2 models, found 1"),
    ):
        with pytest.raises(RecipeError, match=problem):
            parse_recipes(recipe % (share, other), lookup=method_lookup(tmp_path, allow_code=True))


def test_types_may_come_from_defaults(tmp_path: Path) -> None:
    written(tmp_path, "def first(models, t=0.5, share=(2.0,), flag=True): return models[0]")
    found = load_method("./blend.py:first", tmp_path).spec.parameters
    assert [(one.name, one.type, one.default, one.per_model) for one in found] == [
        ("t", "float", 0.5, False),
        ("share", "float", 2.0, True),
        ("flag", "bool", True, False),
    ]


def test_a_missing_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"absent\.py: the file of the merge method does not exist"):
        load_method("./absent.py:blend", tmp_path)


def test_a_missing_function_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"blend\.py: has no function 'blent'; did you mean 'blend'"):
        load_method("./blend.py:blent", written(tmp_path, BLEND))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("blend = 3", "'blend' is a int; expected a function"),
        ("def blend(tensors): ...", "takes tensors; expected a parameter 'models'"),
        ("def blend(): ...", "takes no parameters; expected a parameter 'models'"),
        ("def blend(models, **rest): ...", r"'\*\*rest' cannot be passed by keyword"),
        ("def blend(models, /): ...", "'models' cannot be passed by keyword"),
        ("def blend(models, t): ...", "parameter 't' has no type; expected float, int, bool or str"),
        ("def blend(models, t: complex): ...", "parameter 't' has the type complex; expected float"),
        ("def blend(models, t: list[dict]): ...", r"parameter 't' has the type list\[dict\]; expected float"),
        ("def blend(models, t: float = 'x'): ...", "parameter 't' has the default 'x'; expected one of type float"),
        ("def blend(models, t: int = True): ...", "parameter 't' has the default True; expected one of type int"),
        ("def blend(models, t: list[float] = (1, 2)): ...", r"the default \(1, 2\); expected a tuple of the one value"),
        ("def blend(models, context: int): ...", "'context' has the type int; expected MergeContext"),
        ("def blend(models: 'Missing'): ...", "the types of its parameters cannot be read: name 'Missing'"),
        ("\n\ndef blend(models, t): ...", r"blend\.py:3: blend\(\): parameter 't' has no type"),
        ("class Blend:\n    def __call__(self, models): ...\nblend = Blend()", "is a Blend; expected a function"),
        ("\nimport no_such_module", r"blend\.py:2: the file of the merge method fails: ModuleNotFoundError: No module"),
        ("import json\n\njson.loads('')", r"blend\.py:3: the file of the merge method fails: JSONDecodeError"),
        ("\ndef blend(:", r"blend\.py:2: the file of the merge method fails: SyntaxError: [^(\n]*$"),
        ("x = 1\nraise SystemExit", r"blend\.py:2: the file of the merge method fails: SystemExit$"),
    ],
)
def test_files_that_hold_no_method(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_method("./blend.py:blend", written(tmp_path, source))


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("return 1.0", UsageError, r":2: blend\(\) returned a value of type float for tensor 'w'; expected a Tensor"),
        ("models", UsageError, r":2: blend\(\) returned None for tensor 'w'; .* \(is a 'return' missing\?\)"),
        ("return models[0].sum()", ShapeError, r":2: blend\(\) returned the shape \(\) for .* expected \(2,\)"),
        (
            "\n    return models[0] * (1 / (len(models) - 1))",
            UsageError,
            r":3: blend\(\) fails for .*: ZeroDivisionError: ",
        ),
        ("\n    x = 1\n    return models[1]", UsageError, r":4: blend\(\) fails for tensor 'w': IndexError: "),
        ("return models[0] + lbrx.full((3,), 1, 'f32')", UsageError, r":2: blend\(\) fails for .*: ShapeError: "),
        ("return json.loads('x')", UsageError, r":2: blend\(\) fails for tensor 'w': JSONDecodeError: "),
        ("raise SystemExit", UsageError, r":2: blend\(\) fails for tensor 'w': SystemExit"),
    ],
)
def test_calls_that_give_no_merged_tensor(
    tmp_path: Path, body: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, f"import json, lbrx\ndef blend(models): {body}")
    lbrx.save(tmp_path / "a.safetensors", {"w": tensor([1.0, 2.0])})
    monkeypatch.chdir(tmp_path)  # the file's own path may be a relative one
    method = load_method("./blend.py:blend")
    with pytest.raises(error, match=r"^blend\.py" + message) as caught:
        method.merge([lbrx.open("a.safetensors")["w"]], None, NO_PARAMETERS, MergeContext("w"))
    assert "\n" not in str(caught.value)


def test_a_file_error_of_an_input_stays_one(tmp_path: Path) -> None:
    written(tmp_path, "def blend(models): return models[0] * float(models[0].max())")
    path = tmp_path / "a.safetensors"
    lbrx.save(path, {"w": lbrx.full((1 << 16,), 1.0, "f32")})
    values = lbrx.open(path)["w"]
    with path.open("r+b") as file:
        file.truncate(200)
    with pytest.raises(FileError, match=r"a\.safetensors"):
        load_method("./blend.py:blend", tmp_path).merge([values], None, NO_PARAMETERS, MergeContext("w"))


def test_a_tensor_that_only_the_base_has_reaches_the_function(tmp_path: Path) -> None:
    written(tmp_path, "def blend(base, models): return base * (1 + len(models))")
    method = load_method("./blend.py:blend", tmp_path)
    assert method.merge([tensor([3.0])], 0, NO_PARAMETERS, MergeContext("w")).numpy().tolist() == [3.0]
    assert method.function(tensor([3.0]), [tensor([1.0])]).numpy().tolist() == [6.0]


# -- recipes may not run code unless the caller allows it --------------------------------------------------------------


@pytest.fixture
def recipe_with_code(tmp_path: Path) -> Path:
    """A recipe whose method leaves a file behind when it runs."""
    lbrx.save(tmp_path / "a.safetensors", {"w": tensor([1.0, 2.0])})
    written(
        tmp_path,
        f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\ndef blend(models): return models[0]",
    )
    path = tmp_path / "recipe.yml"
    path.write_text(f"{{merge_method: ./blend.py:blend, models: [{{model: {tmp_path / 'a.safetensors'}}}]}}")
    return path


def test_a_recipe_runs_no_code_without_leave(recipe_with_code: Path, tmp_path: Path) -> None:
    for call in (
        partial(lbrx.merge, recipe_with_code, tmp_path / "out"),
        partial(read_and_plan, recipe_with_code, "o"),
    ):
        with pytest.raises(UsageError, match=rf"{tmp_path}/blend\.py: the recipe runs this Python file.*--allow-code"):
            call()
    with pytest.raises(UsageError, match=r"blend\.py: the recipe runs this Python file"):
        plan_merge(parse_recipes(recipe_with_code.read_text()), tmp_path / "out", directory=tmp_path)
    assert not (tmp_path / "ran").exists()
    assert lbrx.merge(recipe_with_code, tmp_path / "out", allow_code=True).tensors == 1
    assert (tmp_path / "ran").exists()


def test_the_command_needs_the_option(
    recipe_with_code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for more in ([], ["--dry-run"], ["--cluster", "auto"]):
        assert run(["merge", str(recipe_with_code), str(out), *more]) == 1
        assert f"{tmp_path}/blend.py: the recipe runs this Python file" in "".join(capsys.readouterr().err.split("\n"))
    assert not (tmp_path / "ran").exists()
    assert run(["merge", str(recipe_with_code), str(out), "--allow-code"]) == 0
    assert len(lbrx.open(out)) == 1


def test_a_method_named_on_the_command_line_is_run(recipe_with_code: Path, tmp_path: Path) -> None:
    del recipe_with_code
    name = f"{tmp_path}/blend.py:blend"
    assert run(["merge", str(tmp_path / "a.safetensors"), "--method", name, "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "ran").exists()


def test_only_public_functions_are_suggested(tmp_path: Path) -> None:
    source = "blend_count = 3\n\ndef _blend_all(models): return models[0]\n"
    for name in ("blend_coun", "_blend_al"):
        with pytest.raises(UsageError, match=f"has no function '{name}'$"):
            load_method(f"./blend.py:{name}", written(tmp_path, source))
