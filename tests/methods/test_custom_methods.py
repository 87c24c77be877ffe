"""Methods from a user's Python file: what the signature means, how they run, and what goes wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lbrx import tensor
from lbrx.errors import FileError, ShapeError, UsageError
from lbrx.methods import MergeContext, load_method, method_lookup
from lbrx.recipe import REQUIRED, FrozenMap, RecipeError, TensorParameters, load_recipes, resolve_tensor

BLEND = '''
from __future__ import annotations

from collections.abc import Sequence

from lbrx import Tensor
from lbrx.methods import MergeContext


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


def written(folder: Path, source: str, name: str = "blend.py") -> Path:
    folder.joinpath(name).write_text(source)
    return folder


def test_the_signature_describes_the_parameters(tmp_path: Path) -> None:
    spec = load_method("./blend.py:blend", written(tmp_path, BLEND)).spec
    assert spec.needs_base == "required"
    described = [(found.name, found.kind, found.default, found.per_model) for found in spec.parameters]
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
    (recipe,) = load_recipes(path, lookup=method_lookup(tmp_path))
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
        load_recipes(path, lookup=method_lookup(tmp_path))


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


def test_types_may_come_from_defaults(tmp_path: Path) -> None:
    written(tmp_path, "def first(models, t=0.5, share=(2.0,), flag=True): return models[0]")
    found = load_method("./blend.py:first", tmp_path).spec.parameters
    assert [(one.name, one.kind, one.default, one.per_model) for one in found] == [
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
        ("import no_such_module", "the file of the merge method fails: ModuleNotFoundError: No module named"),
        ("def blend(:", "the file of the merge method fails: SyntaxError"),
    ],
)
def test_files_that_hold_no_method(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_method("./blend.py:blend", written(tmp_path, source))


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("return 1.0", UsageError, "the result for tensor 'w' is of type float; expected a Tensor"),
        ("return models[0].sum()", ShapeError, r"the result for tensor 'w' has the shape \(\); expected \(2,\)"),
    ],
)
def test_results_that_are_no_merged_tensor(tmp_path: Path, body: str, error: type[Exception], message: str) -> None:
    method = load_method("./blend.py:blend", written(tmp_path, f"def blend(models): {body}"))
    with pytest.raises(error, match=message):
        method.merge([tensor([1.0, 2.0])], None, TensorParameters(FrozenMap(), (FrozenMap(),)), MergeContext("w"))
