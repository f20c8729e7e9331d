"""Lowering of matmul_nbits: its weights packed in panels, and its steps."""

from __future__ import annotations

import math

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes, aligned_copy
from trireme.devices.cpu.kernels.f32.products import constant_reason
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    Step,
    Temp,
)
from trireme.devices.cpu.kernels.nbits.product import (
    NBitsShape,
    Zeros,
    cut_nbits,
    has_byte_products,
    nbits_kernel,
)
from trireme.devices.cpu.kernels.nbits.rows import RowsShape, rows_kernel
from trireme.ir.graph import Graph, Node
from trireme.ops.block_quantized import ROUNDED, codes
from trireme.support.dtypes import Array

_FAMILY = "matmul_nbits"


def reason(graph: Graph, node: Node) -> str | None:
    """Say why a product has no native kernel, None when it has."""
    block, bits = node.attrs["block_size"], node.attrs["bits"]
    if block * bits % 32:
        return f"matmul_nbits has no native kernel for blocks of {block} codes of {bits} bits"
    zeros = _input(node, 3)
    for value in (*node.used, *node.outputs):
        type = graph.type(value)
        if type.quant is not None:
            return f"matmul_nbits has no native kernel for quantised {type.dtype}"
        if not type.elements:
            return "matmul_nbits has no native kernel for empty tensors"
        if type.dtype != "float32" and not (
            value in (node.used[1], zeros) and type.dtype == "uint8"
        ):
            return f"matmul_nbits has no native kernel for {type.dtype}"
    constants = [(1, "weights"), (2, "scales"), *([] if zeros is None else [(3, "zero points")])]
    reasons = (constant_reason(graph, node, position, what) for position, what in constants)
    return next((why for why in reasons if why), None)


def _input(node: Node, position: int) -> int | None:
    return node.inputs[position] if position < len(node.inputs) else None


def lower(context: Context, node: Node) -> list[Step]:
    """Return the step of a product, after the one that rounds its rows where that is wanted."""
    shape = _shape(context, node)
    cut = cut_nbits(context.isa, shape)
    width = cut.vectors * context.isa.lanes
    a = context.operand(node.used[0])
    steps: list[Step] = []
    extra: list[Operand] = []
    if shape.rounded:
        rounding, a, extra = _rounded(context, node, shape, a)
        steps.append(rounding)
    zeros, bias = _input(node, 3), _input(node, 4)
    reads: list[Operand] = [a, _weights(context, node.used[1], shape, cut.panels, width)]
    reads.append(_in_panels(context, node.used[2], "scales", cut.panels, width))
    if zeros is not None and shape.zeros != "middle":
        reads.append(_in_panels(context, zeros, "zeros", cut.panels, width))
    reads += extra
    if bias is not None:
        reads.append(context.operand(bias))
    code, chunks, seconds = context.kernel(nbits_kernel, shape, cut)
    product = Step(
        code,
        tuple(reads),
        node.outputs,
        chunks,
        seconds=seconds,
        nodes=(node.id,),
        columns=chunks,
        family=_FAMILY,
    )
    return [*steps, product]


def _shape(context: Context, node: Node) -> NBitsShape:
    dims = context.type(node.used[0]).dims
    return NBitsShape(
        math.prod(dims[:-1]),
        context.type(node.used[1]).dims[0],
        dims[-1],
        node.attrs["block_size"],
        node.attrs["bits"],
        _zeros(context, node),
        _input(node, 4) is not None,
        node.attrs["accuracy_level"] == ROUNDED,
    )


def _zeros(context: Context, node: Node) -> Zeros:
    value = _input(node, 3)
    if value is None or (context.constant(value) == 1 << (node.attrs["bits"] - 1)).all():
        return "middle"
    return "bytes" if context.type(value).dtype == "uint8" else "floats"


def _rounded(
    context: Context, node: Node, shape: NBitsShape, a: Operand
) -> tuple[Step, Operand, list[Operand]]:
    """Return the step that rounds rows, and the numbers, steps and sums that it makes."""
    as_bytes = has_byte_products(context.isa, shape)
    rows = RowsShape(shape.rows, shape.depth, shape.block, as_bytes)
    size = 1 if as_bytes else 4
    made = [
        Temp(f"numbers {node.id}", shape.rows * shape.row * size),
        Temp(f"steps {node.id}", shape.rows * shape.blocks * 4),
        Temp(f"sums {node.id}", shape.rows * shape.blocks * 4),
    ]
    code, chunks, seconds = context.kernel(rows_kernel, rows)
    step = Step(
        code, (a, *made), (), chunks, seconds=seconds, nodes=(node.id,), family=f"{_FAMILY} rows"
    )
    return step, made[0], [*made[1:]]


def _weights(context: Context, value: int, shape: NBitsShape, panels: int, width: int) -> Operand:
    """Return codes as [panels, 32-bit elements of a column, columns of a panel].

    Byte i of an element holds code i in its low bits, then code i + 4 and so on.
    """
    elements = shape.blocks * shape.block // shape.codes

    def make() -> Array:
        made = aligned_bytes(4 * panels * elements * width).reshape(panels, elements, width, 4)
        data = context.constant(value)
        for panel in range(panels):
            rows = codes(data[panel * width : (panel + 1) * width], shape.bits)
            parts = rows.reshape(len(rows), elements, 8 // shape.bits, 4)
            packed = np.zeros((width, elements, 4), np.uint8)
            for part in range(8 // shape.bits):
                packed[: len(rows)] |= parts[:, :, part] << np.uint8(shape.bits * part)
            made[panel] = packed.transpose(1, 0, 2)
        return made

    return context.pack_later(
        value, f"nbits {shape.bits} {width}", 4 * panels * elements * width, make
    )


def _in_panels(context: Context, value: int, what: str, panels: int, width: int) -> Operand:
    """Return one number a block of each column as [panels, blocks, columns of a panel]."""

    def make() -> Array:
        data = context.constant(value)
        room = np.zeros((panels * width, data.shape[1]), data.dtype)
        room[: len(data)] = data
        return aligned_copy(room.reshape(panels, width, -1).transpose(0, 2, 1))

    return context.pack(value, f"nbits {what} {width}", make)


TABLE.add("matmul_nbits", Rule(reason, lower), ["float32"])
