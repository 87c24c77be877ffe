"""What products with coded vectors know of each codec agrees with the descriptions that kernels are made from."""

from __future__ import annotations

import pytest

from lbrx.devices.cpu.kernels import coded_vectors
from lbrx.devices.cpu.kernels.groups import group
from lbrx.devices.cpu.kernels.groups.table import GROUPS
from lbrx.devices.cpu.ops.coded_groups import CODED_GROUPS
from lbrx.tensors.codecs.codec import codec

ORDERS = {
    "in_order": group.NATURAL,
    "by_halves_of_32": group.HALVES_OF_32,
    "by_halves_of_16": group.HALVES_OF_16,
}


def test_the_tables_have_the_same_codecs() -> None:
    assert list(CODED_GROUPS) == list(GROUPS)


@pytest.mark.parametrize("name", GROUPS)
def test_a_codec_is_described_alike(name: str) -> None:
    described, coded = GROUPS[name], CODED_GROUPS[name]
    assert (described.scaled, described.lows is not None) == (coded.scaled, coded.has_lows)
    assert described.order == ORDERS[coded.coder.removeprefix("signed_").removesuffix("_by_16")]
    assert coded.coder.startswith("signed_") == described.is_signed
    assert hasattr(coded_vectors, coded.coder)
    assert coded.coder.endswith("16") == (described.scaled == 16), "sums of as many numbers as have one scale"
    assert sorted(described.order) == list(range(32))


@pytest.mark.parametrize("name", GROUPS)
def test_blocks_have_the_size_of_the_codec(name: str) -> None:
    described, stored = GROUPS[name], codec(name)
    assert (described.block_elements, described.block_bytes) == (stored.block_elements, stored.block_bytes)
    assert described.nbytes <= group.MOST_GROUP_BYTES
