"""Matrix products in an evaluation: computed whole into memory, or in panels of rows as a pass reads them."""

from __future__ import annotations

import math

import numpy as np

from lbrx.engine.bind import Known
from lbrx.engine.device import Multiplication, device, multiply, note, product_device
from lbrx.engine.fuse import PassLeaf
from lbrx.engine.scalars import scalar_value
from lbrx.memory.scratch import borrowing
from lbrx.tensors.coded import U8, Blocks, Decode, Encode, stored_key
from lbrx.tensors.expr import Counter, Expr, Map, MatMul, Scalar, Source, Stored
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import Bytes, ReadStorage, Storage
from lbrx.tensors.tensor import Tensor

STREAMED_BYTES = 32 << 20  # of a product that is larger, only panels are in memory


def is_streamed(product: MatMul, layout: Layout | None = None) -> bool:
    """Whether a pass reads a product in panels: those that it sees row by row and that are large, or thin.

    This depends on the structure and on sizes alone, as plans do.
    """
    if len(product.shape) != 2 or (layout is not None and not _is_in_order(layout)):
        return False
    return product.block_rows is not None or 4 * math.prod(product.shape) > STREAMED_BYTES


def _is_in_order(layout: Layout) -> bool:
    """Whether elements are seen in the order in which they are stored."""
    steps = [stride for stride, size in zip(layout.strides, layout.shape, strict=True) if size > 1]
    return all(stride >= 0 for stride in steps) and steps == sorted(steps, reverse=True)


def can_be_cut(expr: Expr) -> bool:
    """Whether rows of an operand can be computed without the others."""
    if isinstance(expr, Map):
        return all(not arg.shape or can_be_cut(arg) for arg in expr.args)
    return expr.is_simple or isinstance(expr, (Stored, MatMul, Decode))


def multiplied(product: MatMul, known: Known) -> Storage:
    """The whole product."""
    note(_described(product))
    return multiply(*_operands(product, known), product.transpose_b)


def product_of_stored(product: MatMul) -> Storage | None:
    """The product of operands that are in storages, for which no plan is needed; None for others."""
    a, b = product.args
    if not isinstance(a, (Source, Blocks)) or not isinstance(b, (Source, Blocks)):
        return None
    note(_described(product))
    return multiply(Tensor(a), Tensor(b), product.transpose_b)


def _described(product: MatMul) -> Multiplication:
    a, b = (f"{Tensor(operand).type_name} {operand.shape}" for operand in product.args)
    return Multiplication(a, f"{b} transposed" if product.transpose_b else b)


def _operands(product: MatMul, known: Known) -> tuple[Tensor, Tensor]:
    return Tensor(resolved(product.args[0], known)), Tensor(resolved(product.args[1], known))


class ProductRows(ReadStorage):
    """The elements of a product as a pass reads them: every window is computed in whole panels of rows.

    Panels do not depend on windows, so results do not depend on threads or chunks.
    """

    __slots__ = ("_columns", "_panels", "nbytes", "operation")

    def __init__(self, product: MatMul, known: Known) -> None:
        a, b = _operands(product, known)
        self._panels = device(product_device(a, b)).product_rows(a, b, product.transpose_b, product.block_rows)
        self.operation = _described(product)
        self._columns = product.shape[1]
        self.nbytes = 4 * math.prod(product.shape)

    @property
    def panel_elements(self) -> int:
        return self._panels.panel_rows * self._columns

    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Compute a window; its ends may lie within a row."""
        row_bytes, done = 4 * self._columns, 0
        while done < buffer.size:
            first, stop = self._panels.panel((offset + done) // row_bytes)
            skipped, whole = offset + done - first * row_bytes, (stop - first) * row_bytes
            part = buffer[done : done + whole - skipped]
            if part.size == whole and part.ctypes.data % 4 == 0:
                self._multiply(first, stop, part)
            else:
                with borrowing() as borrow:
                    panel = borrow(whole)
                    self._multiply(first, stop, panel)
                    part[:] = panel[skipped : skipped + part.size]
            done += part.size

    def _multiply(self, first: int, stop: int, out: Bytes) -> None:
        self._panels.multiply(first, stop, out.view(np.float32).reshape(stop - first, self._columns))


def resolved(expr: Expr, known: Known) -> Expr:
    """An expression with what earlier passes found put in: numbers as scalars, stored intermediates as sources."""
    return _Resolver(known).resolved(expr)


def _bytes_in(storage: Storage | None) -> Source | None:
    return None if storage is None else Source(storage, U8, Layout.contiguous((storage.nbytes,)))


class _Resolver:
    def __init__(self, known: Known) -> None:
        self.known = known
        self.done: dict[int, Expr] = {}

    def resolved(self, expr: Expr) -> Expr:
        done = self.done.get(id(expr))
        if done is None:
            done = self.done[id(expr)] = self._new(expr)
        return done

    def _new(self, expr: Expr) -> Expr:
        stored = self.known.stored
        if isinstance(expr, (Scalar, Source, Counter, Blocks)):
            return expr
        if not expr.shape:
            return Scalar(scalar_value(expr, self.known).item(), expr.dtype)
        if isinstance(expr, Encode):
            return expr.stored_in([stored[stored_key(part)] for part in expr.parts])
        if isinstance(expr, Decode):
            given = self.known.bound(PassLeaf("source", expr))
            return Decode(tuple(map(_bytes_in, (given.storage, *given.numbers))), expr.codec, expr.layout, expr.rows)
        if isinstance(expr, Stored) and stored_key(expr.inner) in stored:
            return Source(stored[stored_key(expr.inner)], expr.dtype, expr.layout, expr.rows)
        if id(expr) in stored:
            return Source(stored[id(expr)], expr.dtype, Layout.contiguous(expr.shape))
        return expr.over(tuple(map(self.resolved, expr.args)))
