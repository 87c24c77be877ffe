"""Dataclasses that are made quickly behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from lbrx.base.fast_dataclass import dataclass as quick_dataclass

Decorator = Callable[..., Any]
OPTIONS: list[dict[str, bool]] = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "eq": False},
    {"slots": True, "repr": False},
]


@quick_dataclass(frozen=True, slots=True)
class Frozen:
    """At the top of a module, where pickle finds it."""

    name: str
    sizes: tuple[int, ...] = ()


@quick_dataclass(frozen=True, slots=True)
class FrozenChild(Frozen):
    """With fields of its own after those of its base."""

    place: int = 7


def sample(decorator: Decorator, options: dict[str, bool]) -> Any:
    @decorator(**options)
    class Sample:
        """Fields of all kinds."""

        kind: ClassVar[str] = "sample"
        name: str
        count: int = 3
        parts: list[int] = dataclasses.field(default_factory=list)
        hidden: str = dataclasses.field(default="h", repr=False, compare=False)
        unhashed: Any = dataclasses.field(default=None, hash=False)

    return Sample


@pytest.fixture(params=OPTIONS, ids=str)
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return sample(quick_dataclass, request.param), sample(dataclasses.dataclass, request.param)


def test_fields_values_and_signatures_are_the_same(both: tuple[Any, Any]) -> None:
    own, standard = both
    assert [field.name for field in dataclasses.fields(own)] == [field.name for field in dataclasses.fields(standard)]
    assert list(inspect.signature(own).parameters) == list(inspect.signature(standard).parameters)
    assert dataclasses.asdict(own("a", 4)) == dataclasses.asdict(standard("a", 4))
    assert dataclasses.asdict(own(count=1, name="b")) == dataclasses.asdict(standard(count=1, name="b"))
    assert dataclasses.asdict(dataclasses.replace(own("a"), count=9)) == {
        **dataclasses.asdict(standard("a")),
        "count": 9,
    }
    assert own("a").parts is not own("a").parts
    assert own.kind == "sample"
    assert own.__match_args__ == standard.__match_args__


def test_equality_and_text_are_the_same(both: tuple[Any, Any]) -> None:
    own, standard = both
    pairs = [("a", {}), ("a", {"hidden": "x"}), ("a", {"unhashed": 1}), ("b", {})]
    for name, changes in pairs:
        assert (own("a") == own(name, **changes)) == (standard("a") == standard(name, **changes))
    assert own("a") != standard("a")
    if "object at" not in repr(standard("a")):
        assert repr(own("a")).rpartition(".")[2] == repr(standard("a")).rpartition(".")[2]
    else:
        assert "object at" in repr(own("a"))
    assert hasattr(own, "__dict__") == hasattr(standard, "__dict__")
    assert ("__dict__" in dir(own("a"))) == ("__dict__" in dir(standard("a")))


def test_objects_are_hashed_and_changed_as_the_options_say(both: tuple[Any, Any]) -> None:
    own, standard = both
    assert (own.__hash__ is None) == (standard.__hash__ is None)
    for cls in (own, standard):
        made = cls("a", parts=())
        if cls.__hash__ is not None and standard.__eq__ is not object.__eq__:
            assert hash(made) == hash(cls("a", parts=(), hidden="other", unhashed=[]))
    for change in (lambda made: setattr(made, "name", "b"), lambda made: delattr(made, "name")):
        outcomes = []
        for cls in (own, standard):
            try:
                change(cls("a"))
            except AttributeError as error:
                outcomes.append((type(error), str(error)))
            else:
                outcomes.append((type(None), ""))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("arguments", [(), ("a", 1, [], "h", None, "too many")])
def test_wrong_calls_have_the_same_message(both: tuple[Any, Any], arguments: tuple[Any, ...]) -> None:
    messages = []
    for cls in both:
        with pytest.raises(TypeError) as error:
            cls(*arguments)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_frozen_objects_with_slots_are_pickled_and_copied() -> None:
    for made in (Frozen("a", (1, 2)), FrozenChild("a", (1,), 5)):
        assert pickle.loads(pickle.dumps(made)) == made
        assert copy.copy(made) == made
    assert FrozenChild("a").place == 7
    assert Frozen("a") != FrozenChild("a")
    assert repr(FrozenChild("a")) == "FrozenChild(name='a', sizes=(), place=7)"


def test_methods_of_the_class_are_kept() -> None:
    @quick_dataclass(frozen=True)
    class Named:
        name: str

        def __post_init__(self) -> None:
            object.__setattr__(self, "name", self.name.upper())

        def __repr__(self) -> str:
            return f"<{self.name}>"

    assert repr(Named("a")) == "<A>"


def test_a_field_without_default_after_one_with_it_is_an_error() -> None:
    with pytest.raises(TypeError, match="field 'b' has no default"):
        quick_dataclass(type("Wrong", (), {"__annotations__": {"a": "int", "b": "int"}, "a": 1}))
