"""Elementwise ops as expressions of OpenCL C: one table row an op.

In a template {0}, {1}.. are the operands' variables, and {T} casts to their type. A row also lists
its dtypes. Formulas and limits are the references' own (NaN, infinities, -0). sin, cos
and tan are left out, because PoCL's are off by 1e-2 at 88.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trireme.backend.refusal import Refusal
from trireme.devices.opencl.kernels.source import (
    ACTIVATIONS,
    Lanes,
    activation,
    c_float,
    clamped,
    compute_type,
)
from trireme.devices.opencl.lowering import C_TYPES
from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op

FLOAT = ("float32", "float16")
SIGNED = (*FLOAT, "int8", "int16", "int32", "int64")
NUMBERS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
INTEGERS = tuple(name for name in NUMBERS if name not in FLOAT)
ANY = (*NUMBERS, "bool")

MOST_OPERANDS = 64
"""The most arrays of an elementwise kernel: OpenCL guarantees room for 128 pointers as
arguments."""

Attrs = Mapping[str, Any]


@dataclass(frozen=True)
class Expression:
    """The computation of an op.

    It has a template (or a function of the attributes that makes one), its dtypes, and whether it
    gives booleans. Its last field says whether many inputs are folded from the left.
    """

    template: str | Callable[[Attrs], str]
    dtypes: tuple[str, ...] = FLOAT
    boolean: bool = False
    fold: bool = False

    def text(self, attrs: Attrs) -> str:
        """Return the template for these attributes."""
        return self.template if isinstance(self.template, str) else self.template(attrs)


def _f(attrs: Attrs, name: str) -> str:
    return c_float(attrs[name])


def _elu(alpha: str) -> str:
    return f"({{0}} < {{T}}(0) ? {alpha} * expm1({{0}}) : {{0}})"


def _clip(attrs: Attrs) -> str:
    return "{0}"


def _celu(attrs: Attrs) -> str:
    low = f"({_f(attrs, 'alpha')} * expm1({{0}} / {_f(attrs, 'alpha')}))"
    return f"(({{0}} < {{T}}(0) ? {{T}}(0) : {{0}}) + ({low} > {{T}}(0) ? {{T}}(0) : {low}))"


def _selu(attrs: Attrs) -> str:
    alpha, gamma = _f(attrs, "alpha"), _f(attrs, "gamma")
    return f"({gamma} * ({{0}} <= {{T}}(0) ? {alpha} * expm1({{0}}) : {{0}}))"


def _shrink(attrs: Attrs) -> str:
    limit, bias = _f(attrs, "lambd"), _f(attrs, "bias")
    return (
        f"({{0}} < {{T}}(-{limit}) ? {{0}} + {{T}}({bias}) : "
        f"({{0}} > {{T}}({limit}) ? {{0}} - {{T}}({bias}) : {{T}}(0)))"
    )


def _hard_sigmoid(attrs: Attrs) -> str:
    return clamped(f"({{0}} * {_f(attrs, 'alpha')} + {_f(attrs, 'beta')})", "0.0f", "1.0f")


def _swish(attrs: Attrs) -> str:
    return f"({{0}} * ({{T}}(1.0f) / ({{T}}(1.0f) + exp({{0}} * {c_float(-attrs['alpha'])}))))"


def _leaky(attrs: Attrs) -> str:
    return f"({{0}} < {{T}}(0) ? {{0}} * {_f(attrs, 'alpha')} : {{0}})"


def _threshold(attrs: Attrs) -> str:
    return f"({{0}} > {{T}}({_f(attrs, 'alpha')}) ? {{0}} : {{T}}(0))"


def _gelu(attrs: Attrs) -> str:
    name = "gelu" if attrs["approximate"] == "none" else "gelu_tanh"
    return ACTIVATIONS[name].replace("{x}", "{0}")


def _is_inf(attrs: Attrs) -> str:
    ends = [("detect_positive", "INFINITY"), ("detect_negative", "-INFINITY")]
    asked = [f"({{0}} == {{T}}({end}))" for name, end in ends if attrs[name]]
    return f"({' | '.join(asked) or '({0} != {0}) & ({0} == {0})'})"


_REST = "fmod({0}, {1})"
_APART = f"(({_REST} != {{T}}(0)) & (({_REST} < {{T}}(0)) != ({{1}} < {{T}}(0))))"
"""Whether a remainder is not 0 and has another sign than the divisor."""


def _mod(attrs: Attrs) -> str:
    if attrs["fmod"]:
        return _REST
    rest = f"({_APART} ? {_REST} + {{1}} : {_REST})"
    if attrs["zero"] == "dividend":
        return rest
    return f"({_REST} == {{T}}(0) ? copysign({{T}}(0), {{1}}) : {rest})"


def _floor_div() -> str:
    """Return floor(a / b) of the exact quotient. Source: ATen div_floor_floating."""
    quotient = f"(({{0}} - {_REST}) / {{1}} - ({_APART} ? {{T}}(1) : {{T}}(0)))"
    above = f"({quotient} - floor({quotient}) > {{T}}(0.5f) ? {{T}}(1) : {{T}}(0))"
    zero, floor = "copysign({T}(0), {0} / {1})", f"floor({quotient}) + {above}"
    return f"({{1}} == {{T}}(0) ? {{0}} / {{1}} : ({quotient} == {{T}}(0) ? {zero} : {floor}))"


def _named(name: str) -> str:
    return ACTIVATIONS[name].replace("{x}", "{0}")


_SOFTPLUS = "(({0} < {T}(0) ? {T}(0) : {0}) + log1p(exp(-fabs({0}))))"

ROWS: dict[str, Expression] = {
    "relu": Expression(_named("relu"), SIGNED),
    "relu6": Expression(_named("relu6")),
    "relu_n1_to_1": Expression(_named("relu_n1_to_1")),
    "tanh": Expression("tanh({0})"),
    "sigmoid": Expression(_named("sigmoid")),
    "hard_sigmoid": Expression(_hard_sigmoid),
    "hard_swish": Expression(_named("hard_swish")),
    "swish": Expression(_swish),
    "gelu": Expression(_gelu),
    "erf": Expression("erf({0})"),
    "leaky_relu": Expression(_leaky),
    "elu": Expression(lambda attrs: _elu(_f(attrs, "alpha"))),
    "celu": Expression(_celu),
    "selu": Expression(_selu),
    "softplus": Expression(_SOFTPLUS),
    "softsign": Expression("({0} / ({T}(1.0f) + fabs({0})))"),
    "mish": Expression(f"({{0}} * tanh{_SOFTPLUS})"),
    "thresholded_relu": Expression(_threshold),
    "shrink": Expression(_shrink),
    "neg": Expression("(-{0})", SIGNED),
    "sign": Expression("({0} > {T}(0) ? {T}(1) : ({0} < {T}(0) ? {T}(-1) : {0}))", SIGNED),
    "abs": Expression("({0} < {T}(0) ? -{0} : {0})", SIGNED),
    "floor": Expression("floor({0})"),
    "ceil": Expression("ceil({0})"),
    "round": Expression("rint({0})"),
    "exp": Expression("exp({0})"),
    "log": Expression("log({0})"),
    "sqrt": Expression("sqrt({0})"),
    "rsqrt": Expression("({T}(1.0f) / sqrt({0}))"),
    "square": Expression("({0} * {0})", NUMBERS),
    "reciprocal": Expression("({T}(1.0f) / {0})"),
    "not": Expression("({0} == {T}(0) ? {T}(1) : {T}(0))", ("bool",)),
    "bitwise_not": Expression("(~{0})", INTEGERS),
    "is_inf": Expression(_is_inf, FLOAT, boolean=True),
    "is_nan": Expression("({0} != {0})", FLOAT, boolean=True),
    "add": Expression("({0} + {1})", NUMBERS),
    "sub": Expression("({0} - {1})", NUMBERS),
    "mul": Expression("({0} * {1})", NUMBERS),
    "div": Expression("({0} / {1})"),
    "mod": Expression(_mod),
    "floor_div": Expression(_floor_div()),
    "squared_difference": Expression("(({0} - {1}) * ({0} - {1}))"),
    "pow": Expression("pow({0}, {1})", ("float32",)),
    "prelu": Expression("({0} < {T}(0) ? {0} * {1} : {0})", SIGNED),
    "max": Expression("(({0} > {1}) | ({0} != {0}) ? {0} : {1})", NUMBERS, fold=True),
    "min": Expression("(({0} < {1}) | ({0} != {0}) ? {0} : {1})", NUMBERS, fold=True),
    "sum": Expression("({0} + {1})", fold=True),
    "clip": Expression(_clip, NUMBERS),
    "where": Expression("({mask0} ? {1} : {2})", ANY),
    "cast": Expression("{0}", ANY),
    "equal": Expression("({0} == {1})", ANY, boolean=True),
    "not_equal": Expression("({0} != {1})", ANY, boolean=True),
    "less": Expression("({0} < {1})", ANY, boolean=True),
    "less_or_equal": Expression("({0} <= {1})", ANY, boolean=True),
    "greater": Expression("({0} > {1})", ANY, boolean=True),
    "greater_or_equal": Expression("({0} >= {1})", ANY, boolean=True),
    "bitwise_and": Expression("({0} & {1})", INTEGERS),
    "bitwise_or": Expression("({0} | {1})", INTEGERS),
    "bitwise_xor": Expression("({0} ^ {1})", INTEGERS),
    "and": Expression("({0} & {1})", ("bool",)),
    "or": Expression("({0} | {1})", ("bool",)),
    "xor": Expression("({0} ^ {1})", ("bool",)),
}
for _name in ("sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh"):
    ROWS[_name] = Expression(f"{_name}({{0}})")


def operand_dtype(graph: Graph, node: Node) -> str:
    """Return the dtype that selects the kernel: the first input's; for where, the second's."""
    return graph.type(node.used[get_op(node.op).main_input]).dtype


def _expression(graph: Graph, node: Node, names: list[str | None], lanes: Lanes) -> str:
    """Return an elementwise node as an expression of variables, without its activation.

    The type is the output's compute type. A fold gives its first step.
    names: the variable of each input, None where it was left out
    """
    row = ROWS[node.op]
    ctype = compute_type(operand_dtype(graph, node))
    given = [name for name in names if name is not None]
    if row.fold and len(given) == 1:
        return given[0]
    spelled = {
        "T": f"({lanes.type(ctype)})",
        "mask0": _mask(given[0], ctype, lanes),
    }
    if node.op == "clip":
        text = _clip_text(names)
    elif node.op == "cast":
        text = _cast(graph, node, given[0], lanes)
    else:
        text = row.text(node.attrs).format(*given, **spelled)
    return lanes.as_bool(text) if row.boolean else text


def statements(
    graph: Graph, node: Node, names: list[str | None], result: str, lanes: Lanes
) -> list[str]:
    """Return the statements that make the variable `result` from the operands' variables.

    A fold takes a statement for each operand. In one expression, a template that names an operand
    twice would double with each operand.
    """
    kind = lanes.type(compute_type(graph.type(node.outputs[0]).dtype))
    lines = [f"{kind} {result} = {_expression(graph, node, names, lanes)};"]
    if ROWS[node.op].fold:
        lines += [
            f"{result} = {_expression(graph, node, [result, name], lanes)};" for name in names[2:]
        ]
    fused = str(node.attrs.get("activation", ""))
    if fused:
        lines.append(f"{result} = {activation(fused, result, lanes)};")
    return lines


def _mask(name: str, ctype: str, lanes: Lanes) -> str:
    if lanes.n == 1:
        return f"({name} != 0)"
    kind = lanes.mask(ctype)
    return f"(convert_{kind}({name}) != ({kind})(0))"


def _clip_text(names: list[str | None]) -> str:
    x, low, high = (*names, None, None)[:3]
    text = str(x)
    if low is not None:
        text = f"(({text} < {low}) | ({low} != {low}) ? {low} : {text})"
    if high is not None:
        text = f"(({text} > {high}) | ({high} != {high}) ? {high} : {text})"
    return text


def _cast(graph: Graph, node: Node, name: str, lanes: Lanes) -> str:
    source = compute_type(graph.type(node.used[0]).dtype)
    to = str(node.attrs["to"])
    if to == "bool":
        return lanes.as_bool(f"({name} != {lanes.splat(source, '0')})")
    target = compute_type(to)
    if source == "float" and target != "float":
        return _to_integer(graph.type(node.used[0]).dtype, target, name, lanes)
    return lanes.convert(target, name)


def _to_integer(dtype: str, target: str, name: str, lanes: Lanes) -> str:
    """Return a float truncated toward zero; `trireme.ops.conversion` defines values out of range.

    OpenCL leaves the conversion of values out of range open.
    """
    if dtype == "float16" and target == "uint":
        return lanes.convert(target, _to_signed(64, name, lanes))
    if target not in ("uint", "ulong"):
        return lanes.convert(target, _to_signed(64 if target == "long" else 32, name, lanes))
    width = 64 if target == "ulong" else 32
    half = lanes.splat("float", f"0x1p{width - 1}f")
    low = _to_signed(width, f"({name} < {half} ? {name} : {name} - {half})", lanes)
    signed = _SIGNED[width]
    top = f"(convert_{lanes.type(signed)}({name} >= {half}) << {width - 1})"
    return f"as_{lanes.type(target)}({low} ^ {top})"


_SIGNED = {32: "int", 64: "long"}


def _to_signed(width: int, name: str, lanes: Lanes) -> str:
    """Return a float as a signed integer, the least one for a value out of range."""
    kind, limit = _SIGNED[width], lanes.splat("float", f"0x1p{width - 1}f")
    inside = f"convert_{lanes.mask(kind)}(({name} >= -{limit}) & ({name} < {limit}))"
    least = lanes.splat(kind, "INT_MIN" if width == 32 else "LONG_MIN")
    return f"({inside} ? {lanes.convert(kind, name)} : {least})"


def refusal(graph: Graph, node: Node) -> str | None:
    """Return why there is no kernel for an elementwise node, or None."""
    row = ROWS[node.op]
    types = [graph.type(value).dtype for value in (*node.used, *node.outputs)]
    unknown = next((dtype for dtype in types if dtype not in C_TYPES), None)
    if unknown is not None:
        return f"no kernel for {unknown}"
    dtype = operand_dtype(graph, node)
    if dtype not in row.dtypes:
        return f"no kernel for {dtype} (has {', '.join(row.dtypes)})"
    if len(node.used) > MOST_OPERANDS:
        return Refusal(f"no kernel for over {MOST_OPERANDS} operands", str(len(node.used)))
    operands = dict.fromkeys(types[: len(node.used)])
    if len(operands.keys() - {"bool"}) > 1:
        return f"no kernel for operands of {' and '.join(operands)}"
    fused = str(node.attrs.get("activation", ""))
    if fused and dtype not in FLOAT:
        return f"no kernel for activation {fused} on {dtype}"
    return None
