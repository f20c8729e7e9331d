"""Kernels on quantised values: the integers of trireme.ops.integer, bit for bit.

Products run on the float kernels (see `products`). Stored integers are widened to float32 without
their zero point. A sum becomes int32 before float32 could lose a bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from trireme.devices.opencl.kernels.convolution import emit_conv, refuse_window
from trireme.devices.opencl.kernels.elementwise import emit_elementwise
from trireme.devices.opencl.kernels.products import emit_fully_connected, emit_matmul
from trireme.devices.opencl.kernels.source import Lanes, c_float, lanes_for
from trireme.devices.opencl.kernels.tiles import ProductOperands, widened
from trireme.devices.opencl.lowering import C_TYPES, KernelName, Lowering, Pointer, Ref
from trireme.ir.graph import Graph, Node, Rounding
from trireme.ir.op import Call, call_of
from trireme.ops import integer as q
from trireme.support.dtypes import Array

_EXACT = 2**24
_KINDS = {"int8": "s8", "uint8": "u8"}
MULTIPLY: Mapping[Rounding, str] = {
    Rounding.TWICE: "multiply_twice",
    Rounding.HALF_AWAY: "multiply_away",
    Rounding.HALF_EVEN: "multiply_even",
}
"""The function of source.PRELUDE that multiplies with each rounding."""
_LINEAR: Mapping[str, Callable[[Call], q.LinearParams]] = {
    "conv": q.conv_params,
    "fully_connected": q.fully_connected_params,
    "matmul": q.matmul_params,
}


def refuse_linear(graph: Graph, node: Node) -> str | None:
    """Return why there is no quantised product here, or None; raises GraphError with a sentence."""
    _LINEAR[node.op](call_of(graph, node))
    if node.op == "matmul":
        return None
    w = graph.values[node.used[1]]
    if not w.is_constant:
        return "the weight is not a constant"
    return refuse_window(graph, node, len(w.type.dims) - 2) if node.op == "conv" else None


def lower_linear(low: Lowering, chain: list[Node]) -> None:
    """Emit a quantised conv, fully_connected or matmul."""
    node, graph = chain[0], low.graph
    params = _LINEAR[node.op](low.call(node))
    x, weight = node.used[0], graph.values[node.used[1]]
    side: Array | Ref
    if weight.data is None:
        side, most_w = widened(low, node, weight.id, params.w_zero), 255
    else:
        side = weight.data.astype(np.int32) - params.w_zero
        most_w = max(int(np.abs(side).max(initial=1)), 1)
    # a float sum is exact while every partial sum is below 2^24
    chunk = _EXACT // (_most(graph.type(x).dtype, params.x_zero) * most_w)
    depth = graph.type(weight.id).dims
    total = depth[-2] if node.op == "matmul" and len(depth) > 1 else math.prod(depth[1:])
    product = ProductOperands(
        low,
        chain,
        x,
        side,
        (weight.id, "integers"),
        "float32",
        Requantize(low, node, params),
        0 if total <= chunk else chunk,
        params.x_zero,
    )
    _EMIT[node.op](product)


_EMIT: Mapping[str, Callable[[ProductOperands], None]] = {
    "conv": emit_conv,
    "fully_connected": emit_fully_connected,
    "matmul": emit_matmul,
}


def _most(dtype: str, zero: int) -> int:
    """Return the largest magnitude of a stored integer less its zero point."""
    low, high = q.dtype_limits(dtype)
    return max(high - zero, zero - low, 1)


@dataclass
class Requantize:
    """Finishes the sums of a quantised product: bias, multiplier and shift, clamp, store."""

    low: Lowering
    node: Node
    params: q.LinearParams
    tensors: list[Pointer] = field(default_factory=list)

    @property
    def scalars(self) -> dict[str, int]:
        """The int arguments that the statements read."""
        return numbers(self.params)

    @property
    def kind(self) -> str:
        """The dtype in names of kernels."""
        return _KINDS[self.low.graph.type(self.node.outputs[0]).dtype]

    @property
    def fused(self) -> tuple[str, ...]:
        """No ops are fused behind it."""
        return ()

    def target(self) -> Pointer:
        """Return the tensor argument to store to."""
        out = self.node.outputs[0]
        return Pointer("y", C_TYPES[self.low.graph.type(out).dtype], self.low.ref(out), writes=True)

    def code(self, value: str, lanes: Lanes, at: str, o: str) -> list[str]:
        """Return statements that finish the variable `value`, float or int, and store it."""
        low, p = self.low, self.params
        key = ("requantize", self.node.id)
        self.tensors = [
            Pointer("multipliers", "int", low.constant(p.multipliers, (*key, "m"))),
            Pointer("shifts", "int", low.constant(p.shifts, (*key, "s"))),
        ]
        acc = lanes.convert("int", value)
        if len(self.node.inputs) > 2 and self.node.inputs[2] is not None:
            self.tensors.append(Pointer("bias", "int", low.ref(self.node.inputs[2])))
            acc += f" + {lanes.load('int32', f'bias + {o}')}"
        if self.node.op == "matmul":
            factors = [lanes.splat("int", f"{name}[0]") for name in ("multipliers", "shifts")]
        else:
            factors = [lanes.load("int32", f"{name} + {o}") for name in ("multipliers", "shifts")]
        dtype = low.graph.type(self.node.outputs[0]).dtype
        whole = f"{MULTIPLY[p.rounding]}{lanes.n}({acc}, {', '.join(factors)})"
        return [
            lanes.store(dtype, lanes.convert(C_TYPES[dtype], clamped(lanes, whole)), f"y + {at}")
        ]


def numbers(params: object) -> dict[str, int]:
    """Return the numbers of lowered parameters by name: the int arguments of a kernel.

    Arguments, unlike numbers in the source, let layers share a kernel.
    """
    return {name: value for name, value in vars(params).items() if type(value) is int}


def clamped(lanes: Lanes, whole: str) -> str:
    """Return an int expression plus the argument y_zero, within the arguments low and high."""
    zero, low, high = (lanes.splat("int", name) for name in ("y_zero", "low", "high"))
    return f"min(max({whole} + {zero}, {low}), {high})"


def scaled(lanes: Lanes, value: str, rounding: Rounding, role: str = "") -> str:
    """Return an int expression times the arguments multiplier and shift of a role."""
    factors = ", ".join(lanes.splat("int", f"{role}{name}") for name in ("multiplier", "shift"))
    return f"{MULTIPLY[rounding]}{lanes.n}({value}, {factors})"


def _off(lanes: Lanes, name: str, zero: str) -> str:
    """Return a stored variable as int less its zero point, an argument."""
    return f"({lanes.convert('int', name)} - {lanes.splat('int', zero)})"


def refuse_binary(graph: Graph, node: Node) -> str | None:
    """Refuse a quantised add, sub, mul or prelu by GraphError; None where it can run."""
    _BINARY[node.op](call_of(graph, node))
    return None


def lower_binary(low: Lowering, chain: list[Node]) -> None:
    """Emit a quantised add, sub, mul or prelu, its inputs broadcast."""
    node = chain[0]
    params = _BINARY[node.op](low.call(node))
    a, b = node.used
    ctype = C_TYPES[low.graph.type(node.outputs[0]).dtype]

    def code(names: Mapping[int, str], lanes: Lanes) -> tuple[list[str], str]:
        value = clamped(lanes, _binary_text(params, names[a], names[b], lanes))
        kind = lanes.type(ctype)
        return [f"const {kind} v = {lanes.convert(ctype, value)};"], "v"

    emit_elementwise(
        low,
        chain,
        KernelName(node.op, ctype, "add_int" if node.op == "add" else ""),
        list(dict.fromkeys((a, b))),
        code,
        numbers=numbers(params),
    )


def _binary_text(
    params: q.AddParams | q.MulParams | q.PreluParams, a: str, b: str, lanes: Lanes
) -> str:
    """Return the formula of the parameters' docstring up to the output's zero point."""
    how = params.rounding
    if isinstance(params, q.AddParams):
        sides = (
            scaled(lanes, f"({_off(lanes, x, f'{role}zero')} << left_shift)", Rounding.TWICE, role)
            for x, role in ((a, "a_"), (b, "b_"))
        )
        return scaled(lanes, " + ".join(sides), how, "y_")
    if isinstance(params, q.MulParams):
        return scaled(lanes, f"{_off(lanes, a, 'a_zero')} * {_off(lanes, b, 'b_zero')}", how)
    x = _off(lanes, a, "x_zero")
    negative = scaled(lanes, f"{x} * {_off(lanes, b, 'slope_zero')}", how, "slope_")
    return f"({x} >= {lanes.splat('int', '0')} ? {scaled(lanes, x, how)} : {negative})"


_BINARY: Mapping[str, Callable[[Call], q.AddParams | q.MulParams | q.PreluParams]] = {
    "add": q.add_params,
    "sub": q.sub_params,
    "mul": q.mul_params,
    "prelu": q.prelu_params,
}


def refuse_table(graph: Graph, node: Node) -> str | None:
    """Refuse a unary op without a table by GraphError; else None."""
    q.unary_table(node.op, call_of(graph, node))
    return None


def lower_table(low: Lowering, chain: list[Node]) -> None:
    """Emit a unary op on 8-bit values as a look-up in a table of 256 bytes."""
    node = chain[0]
    table = q.unary_table(node.op, low.call(node)).view(np.uint8)
    count = low.graph.type(node.used[0]).elements
    each = lanes_for(count, low.tuning.vector)
    body = (
        f"  const int at = min(i0 * {each}, N - {each});\n"
        f"  for (int j = 0; j < {each}; j++) y[at + j] = lut[x[at + j]];"
    )
    tensors = [
        Pointer("x", "uchar", low.ref(node.used[0])),
        Pointer("lut", "uchar", low.constant(table, ("lut", table.tobytes()))),
        Pointer("y", "uchar", low.ref(node.outputs[0]), writes=True),
    ]
    low.emit(
        chain,
        KernelName(node.op, "table", "table"),
        tensors,
        (-(-count // each),),
        body,
        scalars={"N": count},
    )


def refuse_quantize(graph: Graph, node: Node) -> str | None:
    """Return why there is no kernel for quantize, or None."""
    x, y = graph.type(node.used[0]), graph.type(node.outputs[0])
    if x.quant is not None:
        return refuse_table(graph, node)
    if x.dtype != "float32":
        return f"no kernel for {x.dtype} (has float32)"
    q.quant_of(y, "output")
    return None


def lower_quantize(low: Lowering, chain: list[Node]) -> None:
    """Emit quantize, from floats or from another quantisation."""
    node, graph = chain[0], low.graph
    if graph.type(node.used[0]).quant is not None:
        lower_table(low, chain)
        return
    type = graph.type(node.outputs[0])
    quant, (least, most) = q.quant_of(type, "output"), q.dtype_limits(type.dtype)
    rounded = "rint" if quant.rounding is Rounding.HALF_EVEN else "round"

    def code(names: Mapping[int, str], lanes: Lanes) -> tuple[list[str], str]:
        kind, ctype = lanes.type("float"), C_TYPES[type.dtype]
        ends = [lanes.splat("float", c_float(v - quant.zero_point)) for v in (least, most)]
        scale = lanes.splat("float", c_float(quant.scale))
        return [
            f"{kind} r = {rounded}({names[node.used[0]]} / {scale});",
            f"r = r > {ends[0]} ? r : {ends[0]};",
            f"r = r < {ends[1]} ? r : {ends[1]};",
            f"const {lanes.type(ctype)} v = "
            + lanes.convert(ctype, f"({lanes.convert('int', 'r')} + {quant.zero_point})")
            + ";",
        ], "v"

    emit_elementwise(low, chain, KernelName("quantize", family="table"), [node.used[0]], code)


def refuse_dequantize(graph: Graph, node: Node) -> str | None:
    """Return why there is no kernel for dequantize, or None."""
    q.quant_of(graph.type(node.used[0]), "input")
    return None


def lower_dequantize(low: Lowering, chain: list[Node]) -> None:
    """Emit dequantize: one float32 product, which rounds once."""
    node = chain[0]
    quant = q.quant_of(low.graph.type(node.used[0]), "input")

    def code(names: Mapping[int, str], lanes: Lanes) -> tuple[list[str], str]:
        whole = _off(lanes, names[node.used[0]], "zero")
        value = f"{lanes.convert('float', whole)} * {c_float(quant.scale)}"
        return [f"const {lanes.type('float')} v = {value};"], "v"

    zero = {"zero": quant.zero_point}
    emit_elementwise(
        low, chain, KernelName("dequantize", family="table"), [node.used[0]], code, numbers=zero
    )


def refuse_stored(
    refuse: Callable[[Graph, Node], str | None],
) -> Callable[[Graph, Node], str | None]:
    """Return a rule for ops that are right on stored integers of one quantisation."""

    def rule(graph: Graph, node: Node) -> str | None:
        q.same_quant(call_of(graph, node))
        return refuse(graph, node)

    return rule


def refuse_softmax(graph: Graph, node: Node) -> str | None:
    """Refuse a quantised softmax by GraphError; None where it can run."""
    q.softmax_params(call_of(graph, node))
    return None


def lower_softmax(low: Lowering, chain: list[Node]) -> None:
    """Emit a softmax in integers: see quantize.SoftmaxParams; an item makes a row."""
    node = chain[0]
    p = q.softmax_params(low.call(node))
    type = low.graph.type(node.used[0])
    dims = type.dims or (1,)
    axis = int(node.attrs["axis"]) % len(dims)
    size, inner = dims[axis], math.prod(dims[axis + 1 :])
    ctype, out = C_TYPES[type.dtype], C_TYPES[low.graph.type(node.outputs[0]).dtype]
    e = "(long)lut[m - (int)x[first + k * INNER]]"
    lines = [
        "const int first = i1 * SIZE * INNER + i0;",
        "int m = -256;",
        "for (int k = 0; k < SIZE; k++) m = max(m, (int)x[first + k * INNER]);",
        "long s = 0;",
        f"for (int k = 0; k < SIZE; k++) s += {e};",
        "for (int k = 0; k < SIZE; k++) {",
        f"const long v = ({e} * gain + s / 2) / s + y_zero;",
        f"y[first + k * INNER] = ({out})min(max(v, (long)low), (long)high);",
        "}",
    ]
    table = low.constant(p.table, ("softmax", node.id))
    tensors = [
        Pointer("x", ctype, low.ref(node.used[0])),
        Pointer("lut", "int", table),
        Pointer("y", out, low.ref(node.outputs[0]), writes=True),
    ]
    low.emit(
        chain,
        KernelName("softmax", _KINDS[type.dtype]),
        tensors,
        (inner, math.prod(dims[:axis])),
        "\n".join(f"  {line}" for line in lines),
        scalars={"SIZE": size, "INNER": inner, **numbers(p)},
    )


def refuse_concat(graph: Graph, node: Node) -> str | None:
    """Refuse a quantised concat by GraphError; None where it can run."""
    q.concat_tables(call_of(graph, node))
    return None
