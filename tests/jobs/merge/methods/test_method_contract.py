"""What holds for every merge method: its registration, its signature, and how it treats odd inputs."""

from __future__ import annotations

import subprocess
import sys
from inspect import signature

import numpy as np
import pytest

from lbrx import Tensor, tensor
from lbrx.errors import ShapeError, UsageError
from lbrx.jobs.merge.methods import MergeContext, Method, TensorParameters, load_method
from lbrx.jobs.merge.methods.method import argument_name
from lbrx.jobs.merge.methods.parameters import MethodParameter
from lbrx.jobs.merge.recipe import FrozenMap
from lbrx.registry import METHODS

NAMES = sorted(METHODS)
CONTEXT = MergeContext("model.layers.0.w", seed=3)
GIVEN = {"weight": 0.75, "text": "text.txt", "density": 0.5, "t": 0.25, "select_topk": 0.5, "scale": 2.0}


def input_count(method: Method) -> int:
    """Two models where a method takes them, and a base where it needs one."""
    most = method.spec.model_count[1]
    return (2 if most is None else min(2, most)) + (method.spec.needs_base == "required")


def base_location(method: Method) -> int | None:
    return 0 if method.spec.needs_base == "required" else None


def parameters_for(method: Method, inputs: int) -> TensorParameters:
    def values(per_model: bool) -> FrozenMap[str, object]:
        chosen = [parameter for parameter in method.spec.parameters if parameter.per_model is per_model]
        return FrozenMap({parameter.name: GIVEN.get(parameter.name, parameter.default) for parameter in chosen})

    base = base_location(method)
    per_model = tuple(None if index == base else values(True) for index in range(inputs))
    return TensorParameters(values(False), per_model)  # type: ignore[arg-type]


def merge(name: str, inputs: list[Tensor]) -> Tensor:
    method = load_method(name)
    return method.merge(inputs, base_location(method), parameters_for(method, len(inputs)), CONTEXT)


def random_inputs(name: str, shape: tuple[int, ...]) -> list[Tensor]:
    generator = np.random.default_rng(7)
    count = input_count(load_method(name))
    return [tensor(generator.standard_normal(shape).astype(np.float32)) for _ in range(count)]


def test_there_are_26_methods() -> None:
    assert len(METHODS) == 26


def test_a_recipe_imports_only_the_methods_that_it_uses() -> None:
    recipe = "{merge_method: nearswap, base_model: b, models: [{model: a}], parameters: {t: 1}}"
    script = (
        f"import sys\nfrom lbrx.jobs.merge.recipe import parse_recipes\nparse_recipes({recipe!r})\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split()) & {reference.partition(":")[0] for reference in METHODS.values()}
    assert imported == {"lbrx.jobs.merge.methods.nearswap"}


@pytest.mark.parametrize("name", NAMES)
def test_half_inputs_are_computed_in_f32(name: str) -> None:
    inputs = [value.to("bf16") for value in random_inputs(name, (4, 6))]
    assert merge(name, inputs).dtype.name == "f32"


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_of_an_input_is_a_nan_of_the_output(name: str) -> None:
    inputs = random_inputs(name, (4, 6))
    arrays = [value.numpy().copy() for value in inputs]
    arrays[-1][2, 3] = np.nan
    result = merge(name, [tensor(array) for array in arrays]).numpy()
    assert np.isnan(result[2, 3])


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_without_axes_is_merged_like_one_of_one_element(name: str) -> None:
    vectors = random_inputs(name, (1,))
    scalars = [tensor(value.numpy().reshape(())) for value in vectors]
    merged = merge(name, scalars)
    assert merged.shape == ()
    assert merged.dtype.name == "f32"
    np.testing.assert_array_equal(merged.numpy(), merge(name, vectors).numpy()[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_without_elements_stays_one(name: str) -> None:
    assert merge(name, random_inputs(name, (0, 6))).shape == (0, 6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "passthrough"])
def test_equal_inputs_give_themselves(name: str) -> None:
    value = random_inputs(name, (4, 6))[0]
    inputs = [tensor(value.numpy().copy()) for _ in range(input_count(load_method(name)))]
    np.testing.assert_allclose(merge(name, inputs).numpy(), value.numpy(), rtol=2e-6)


def test_the_base_may_stand_anywhere_among_the_inputs() -> None:
    method = load_method("task_arithmetic")
    shared = FrozenMap({"normalize": False, "lambda": 1.0, "rescale": False, "int8_mask": False})
    weights = [FrozenMap({"weight": 1.0, "density": 1.0}), None, FrozenMap({"weight": 10.0, "density": 1.0})]
    inputs = [tensor(np.full(3, value, np.float32)) for value in (2, 1, 3)]
    merged = method.merge(inputs, 1, TensorParameters(shared, tuple(weights)), CONTEXT)
    np.testing.assert_array_equal(merged.numpy(), [22, 22, 22])


def test_inputs_of_different_shapes_are_an_error_that_names_the_tensor() -> None:
    inputs = [tensor(np.zeros((2, 3), np.float32)), tensor(np.zeros((3, 2), np.float32))]
    with pytest.raises(ShapeError, match=r"linear: .*'model.layers.0.w' have the shapes \(2, 3\) and \(3, 2\)"):
        merge("linear", inputs)


def test_no_inputs_are_an_error() -> None:
    with pytest.raises(UsageError, match="has no inputs; expected at least one"):
        load_method("linear").merge([], None, TensorParameters(FrozenMap({"normalize": True}), ()), CONTEXT)


def test_an_unknown_method_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="unknown merge method 'slurp'; did you mean 'slerp'"):
        load_method("slurp")


def test_lambda_is_passed_under_a_name_that_python_allows() -> None:
    assert "lambda_" in signature(load_method("ties").function).parameters
    assert argument_name(MethodParameter("lambda", "float").name) == "lambda_"
