"""YAML tree to Recipe: the keys, their types, and the normal form. Methods are not looked at here."""

from __future__ import annotations

from lbrx.errors import DTypeError
from lbrx.jobs.merge.recipe.reading import (
    ModelRef,
    is_null,
    optional,
    read_int,
    read_list,
    read_map,
    read_open_map,
    read_reference,
    read_text,
    wrong_type,
)
from lbrx.jobs.merge.recipe.schema import (
    EVERY_MODULE,
    NO_PARAMETERS,
    Module,
    Parameters,
    Recipe,
    Slice,
    SliceSource,
    TokenizerSpec,
)
from lbrx.jobs.merge.recipe.values import read_value
from lbrx.jobs.merge.recipe.yaml_lines import FrozenMap, RecipeLine, YamlList, YamlMap, YamlNode
from lbrx.tensors.dtype import DType, dtype

_INPUT_KEYS = ("models", "slices", "modules")
_RECIPE_KEYS = (
    "merge_method",
    *_INPUT_KEYS,
    "base_model",
    "dtype",
    "out_dtype",
    "parameters",
    "tokenizer",
    "tokenizer_source",
    "chat_template",
    "name",
)

_MIXTURE_KEYS = dict.fromkeys(("experts", "shared_experts", "gate_mode", "experts_per_token"), "a recipe of 'lbrx moe'")


def read_recipe(node: YamlNode) -> Recipe:
    """The recipe of one document, in normal form.

    >>> from lbrx.jobs.merge.recipe.yaml_lines import parse_documents
    >>> text = "{merge_method: ties, base_model: b, models: [{model: a, parameters: {weight: 1}}]}"
    >>> recipe = read_recipe(*parse_documents(text))
    >>> [str(source.model) for source in recipe.module("default").slices[0].sources]
    ['a', 'b']
    """
    if is_null(node):
        raise node.location.error("the document is empty; expected a recipe")
    mapping = read_map(node, "a recipe", _RECIPE_KEYS, required=("merge_method",), elsewhere=_MIXTURE_KEYS)
    base_model = _optional_reference(mapping, "base_model")
    base = None if base_model is None else SliceSource(base_model, location=mapping.key_locations["base_model"])
    tokenizer, template = _read_tokenizer(mapping)
    return Recipe(
        method=read_text(mapping.entries["merge_method"], "'merge_method'"),
        modules=_read_modules(mapping, base),
        base_model=base_model,
        dtype=_read_dtype(mapping, "dtype"),
        out_dtype=_read_dtype(mapping, "out_dtype"),
        parameters=_read_parameters(mapping),
        tokenizer=tokenizer,
        chat_template=template,
        name=_read_name(mapping),
        warnings=tuple(dict.fromkeys(mapping.ignored)),
        location=mapping.location,
        method_location=mapping.key_locations["merge_method"],
        base_location=mapping.key_locations.get("base_model", mapping.location),
    )


def _read_tokenizer(mapping: YamlMap) -> tuple[TokenizerSpec | None, str | None]:
    """The tokenizer and the chat template of the output, which most recipes leave out."""
    if not any(key in mapping.entries for key in ("tokenizer", "tokenizer_source", "chat_template")):
        return None, None
    from lbrx.jobs.merge.recipe.tokenizer import read_chat_template, read_tokenizer

    template = optional(mapping, "chat_template")
    return read_tokenizer(mapping), None if template is None else read_chat_template(template)


def _read_modules(mapping: YamlMap, base: SliceSource | None) -> FrozenMap[str, Module]:
    key = _only_key(mapping, _INPUT_KEYS, "the recipe")
    if key != "modules":
        return FrozenMap({EVERY_MODULE: _read_inputs(mapping, key, base, NO_PARAMETERS)})
    modules = read_open_map(mapping.entries[key], "'modules'")
    if not modules.entries:
        raise modules.location.error("'modules' is empty; expected at least one item")
    if EVERY_MODULE in modules.entries:
        raise modules.key_locations[EVERY_MODULE].error(
            "a module cannot be named '*'; 'models' or 'slices' in the recipe itself holds for every module"
        )
    return FrozenMap({name: _read_module(entry, name, base) for name, entry in modules.entries.items()})


def _read_module(node: YamlNode, name: str, base: SliceSource | None) -> Module:
    what = f"module {name!r}"
    mapping = read_map(node, what, ("models", "slices", "parameters"))
    key = _only_key(mapping, ("models", "slices"), what)
    return _read_inputs(mapping, key, base, _read_parameters(mapping))


def _only_key(mapping: YamlMap, keys: tuple[str, ...], what: str) -> str:
    """The one of some keys that is given; none and several are errors."""
    given = [key for key in keys if optional(mapping, key) is not None]
    expected = f"exactly one of {', '.join(map(repr, keys))}"
    if not given:
        raise mapping.location.error(f"{what} needs {expected}, found none")
    if len(given) > 1:
        location = max((mapping.key_locations[key] for key in given), key=lambda location: location.line)
        raise location.error(f"{what} needs {expected}, found {' and '.join(map(repr, given))}")
    return given[0]


def _read_inputs(mapping: YamlMap, key: str, base: SliceSource | None, parameters: Parameters) -> Module:
    """The module that ``models`` or ``slices`` describes."""
    items = read_list(mapping.entries[key], repr(key))
    if key == "slices":
        return Module(tuple(_read_slice(item) for item in items), parameters, mapping.location)
    sources = tuple(_read_model(item) for item in items)
    _reject_duplicates(sources)
    if base is not None and base.model not in (source.model for source in sources):
        sources = (*sources, base)
    return Module((Slice(sources, location=mapping.key_locations[key]),), parameters, mapping.location)


def _read_model(node: YamlNode) -> SliceSource:
    mapping = read_map(node, "an item of 'models'", ("model", "parameters"), required=("model",))
    return SliceSource(
        read_reference(mapping.entries["model"], "'model'"),
        parameters=_read_parameters(mapping),
        location=mapping.location,
    )


def _read_slice(node: YamlNode) -> Slice:
    keys = ("sources", "base_model", "parameters")
    mapping = read_map(node, "an item of 'slices'", keys, required=("sources",))
    sources = tuple(_read_source(item) for item in read_list(mapping.entries["sources"], "'sources'"))
    _reject_duplicates(sources)
    for source in sources[1:]:
        if source.layers != sources[0].layers:
            raise source.location.error(
                f"model {str(source.model)!r} has {source.layers} layers {_range_text(source)}, but the slice's "
                f"first source has {sources[0].layers} {_range_text(sources[0])}; expected equal numbers"
            )
    return Slice(
        sources,
        base_model=_optional_reference(mapping, "base_model"),
        parameters=_read_parameters(mapping),
        location=mapping.location,
    )


def _range_text(source: SliceSource) -> str:
    return str(list(source.layer_range or ()))


def _read_source(node: YamlNode) -> SliceSource:
    mapping = read_map(
        node,
        "an item of 'sources'",
        ("model", "layer_range", "parameters"),
        required=("model", "layer_range"),
    )
    return SliceSource(
        read_reference(mapping.entries["model"], "'model'"),
        layer_range=_read_layer_range(mapping.entries["layer_range"]),
        parameters=_read_parameters(mapping),
        location=mapping.location,
    )


def _read_layer_range(node: YamlNode) -> tuple[int, int]:
    expected = "a list of two layers, [first, one past the last]"
    if not isinstance(node, YamlList):
        raise wrong_type(node, "'layer_range'", expected)
    if len(node.items) != 2:
        raise node.location.error(f"'layer_range' must be {expected}, found a list of {len(node.items)}")
    start = read_int(node.items[0], "the first layer of 'layer_range'", minimum=0)
    end = read_int(node.items[1], "the end of 'layer_range'", minimum=0)
    if start > end:
        raise node.location.error(f"'layer_range' [{start}, {end}] is reversed; expected the first layer first")
    return start, end


def _reject_duplicates(sources: tuple[SliceSource, ...]) -> None:
    first_locations: dict[ModelRef, RecipeLine] = {}
    for source in sources:
        if source.model in first_locations:
            line = first_locations[source.model].line
            raise source.location.error(f"model {str(source.model)!r} is listed twice; first on line {line}")
        first_locations[source.model] = source.location


def _read_parameters(mapping: YamlMap) -> Parameters:
    node = optional(mapping, "parameters")
    if node is None:
        return NO_PARAMETERS
    parameters = read_open_map(node, "'parameters'")
    return FrozenMap(
        {name: read_value(value, name, parameters.key_locations[name]) for name, value in parameters.entries.items()}
    )


def _optional_reference(mapping: YamlMap, key: str) -> ModelRef | None:
    node = optional(mapping, key)
    return None if node is None else read_reference(node, repr(key))


def _read_dtype(mapping: YamlMap, key: str) -> DType | None:
    node = optional(mapping, key)
    if node is None:
        return None
    name = read_text(node, repr(key)).removeprefix("torch.")
    try:
        result = dtype(name)
    except DTypeError as error:
        raise node.location.error(f"{key!r}: {error}") from error
    if not result.is_float:
        raise node.location.error(f"{key!r} is {name!r}; expected a floating type such as float32 or bfloat16")
    return result


def _read_name(mapping: YamlMap) -> str | None:
    node = optional(mapping, "name")
    if node is None:
        return None
    name = read_text(node, "'name'")
    if name in (".", "..") or any(letter in name for letter in "/\\@+\0"):
        raise node.location.error(f"the name {name!r} cannot name a stage; expected no '/', '\\', '@' or '+' in it")
    return name
