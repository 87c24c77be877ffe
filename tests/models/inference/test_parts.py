"""Parts of layers: every record has code, and what a layer remembers is kept by recorded passes, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lbrx.engine.device import device
from lbrx.engine.key_values import KeyValueCache
from lbrx.engine.recording import Recorder, run_on_state
from lbrx.errors import FormatError
from lbrx.models.architectures import records
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.records import GatedMlp, GroupedAttention, PerLayer
from lbrx.models.architectures.table import all_families
from lbrx.models.inference.parts import PARTS, Memory, PartCode, code_of
from lbrx.models.inference.spec import chosen
from lbrx.registry import load


@pytest.mark.parametrize("name", PARTS)
def test_every_record_has_code(name: str) -> None:
    assert isinstance(load(PARTS[name]), PartCode)


def test_every_part_of_a_family_is_listed() -> None:
    for family in all_families():
        if family.decoder is not None:
            for part in (family.decoder.mixer, family.decoder.mlp):
                parts = part.parts.values() if isinstance(part, PerLayer) else (part,)
                assert all(each is None or type(each).__name__ in PARTS for each in parts), family.name


def test_the_config_selects_the_part_of_a_layer() -> None:
    config, part = Config({"kinds": ["a", "b", "c"]}), PerLayer("kinds[layer]", {"a": GatedMlp(), "b": None})
    assert chosen(part, config, {"layer": 0}) == GatedMlp()
    assert chosen(part, config, {"layer": 1}) is None
    with pytest.raises(Exception, match=r"'kinds\[layer\]' is 'c'; expected one of 'a', 'b'"):
        chosen(part, config, {"layer": 2})


def test_sizes_of_keys_may_differ_between_layers() -> None:
    config = Config({"num_attention_heads": 4, "groups": [2, 4, 3], "head_dim": 8}, error_class=FormatError)
    part = GroupedAttention(key_heads="groups[layer]")
    memories = [code_of(part).memory(part, config, {"layer": layer}) for layer in range(2)]
    assert memories == [Memory(keys=(2, 8, 8)), Memory(keys=(4, 8, 8))]
    with pytest.raises(FormatError, match="4 heads cannot share 3 heads of keys"):
        code_of(part).memory(part, config, {"layer": 2})


def test_norms_are_used_where_they_are() -> None:
    norm = records.Norm("both", names=("a", "b", "c", "d"))
    assert norm.used == ("a", "b", "c", "d")
    assert records.Norm().used == ("attn_norm", None, "ffn_norm", None)


def test_a_recorded_pass_keeps_the_state_of_each_cache() -> None:
    def running_sum(arrays: dict[str, Any], rows: Any) -> Any:
        sums = arrays["sum"] + np.cumsum(rows, axis=0)
        arrays["sum"][:] = sums[-1]
        return sums

    def new_cache() -> KeyValueCache:
        return KeyValueCache([(0, 0, 0)] * 2, states=[{}, {"sum": (3,)}])

    def compute(rows: Any, cache: KeyValueCache) -> Any:
        return run_on_state(running_sum, cache.states[1], rows * np.float32(2.0), shape=(2, 3)) + rows

    recorder = Recorder(2)
    result = compute(recorder.input((2, 3)), new_cache())
    step = device("cpu").compile_step(recorder.finish(result))
    assert step is not None
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    caches = new_cache(), new_cache()
    for start in (0, 2, 4):
        step.inputs[0][...] = x[start : start + 2]
        recorded = step.run(caches[0]).copy()
        np.testing.assert_array_equal(recorded, compute(x[start : start + 2], caches[1]))
    np.testing.assert_allclose(caches[0].states[1].arrays["sum"], 2 * x.sum(axis=0), rtol=1e-5)
    assert not new_cache().states[1].arrays["sum"].any()
