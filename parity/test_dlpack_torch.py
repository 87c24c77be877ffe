"""Tensors of lbrx in PyTorch, through DLPack."""

from __future__ import annotations

import gc

import pytest

import lbrx
from lbrx.tensors import dlpack

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("name", "theirs"), [("bf16", "bfloat16"), ("f16", "float16"), ("f32", "float32")])
def test_torch_takes_a_tensor_and_frees_it(name: str, theirs: str) -> None:
    taken = torch.from_dlpack(lbrx.tensor([[1.0, -2.0], [0.5, 4.0]], dtype=name))
    assert taken.dtype == getattr(torch, theirs)
    assert taken.float().tolist() == [[1.0, -2.0], [0.5, 4.0]]
    del taken
    gc.collect()
    assert not dlpack._alive
