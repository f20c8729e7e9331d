"""The definition of an op: signature, meaning, types, cost, samples, tolerance and traits.

Importing `trireme.ops` fills the registry; the first look-up imports that package. Tests, the
constant folder, the supported-ops table and the docs are loops over the registry. A fact about an
op that passes and devices need is a trait of its OpDef. No module outside `trireme.ops` keeps a
list of op names for such a fact.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any, Literal, ParamSpec

import numpy as np

from trireme.ir.axis_map import AxisMap
from trireme.ir.dtype_rules import DtypeRule, Like
from trireme.ir.graph import Dim, Graph, Node, Quant, TensorType, Value
from trireme.ir.python_op import PythonOp
from trireme.support.cached import cached_property
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError, InternalError
from trireme.support.records import dataclass

Effect = Literal["", "reads", "writes", "any"]
IntegerForm = Literal["", "table", "linear", "own", "same"]
Fields = ParamSpec("Fields")
REQUIRED: Any = object()
"""The default of an attribute without a default."""

_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int, np.integer),
    "float": (float, int, np.floating, np.integer),
    "str": (str,),
    "bool": (bool,),
    "ints": (tuple, list),
    "floats": (tuple, list),
    "strs": (tuple, list),
    "array": (np.ndarray,),
    "graph": (Graph,),
    "operator": (PythonOp,),
}
_NORMAL: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "ints": lambda value: tuple(int(v) for v in value),
    "floats": lambda value: tuple(float(v) for v in value),
    "strs": lambda value: tuple(str(v) for v in value),
}


_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Attr:
    """An attribute: its kind, its default (None means "not given") and its allowed values.

    choices: all allowed values, where they are few
    least: the least number; for a list, of each number
    finite: whether a float must be a float32 number; kernels compute with no other
    stored: whether model files have it; the runtime alone gives another

    A default of kind float is rounded to float32, since model files hold float32. So a left-out
    attribute equals one that the file gives.
    """

    kind: str
    default: Any = REQUIRED
    choices: tuple[Any, ...] = ()
    least: float | None = None
    finite: bool = True
    stored: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.default, float):
            object.__setattr__(self, "default", float(np.float32(self.default)))

    def check(self, op: str, name: str, value: Any) -> Any:
        """Return the value in its normal form; raise GraphError when it is of another kind."""
        wrong_bool = isinstance(value, bool) and self.kind != "bool"
        if wrong_bool or not isinstance(value, _KINDS[self.kind]):
            raise GraphError(f"{op}: attribute {name}={value!r} is not of kind {self.kind}")
        if self.choices and value not in self.choices:
            known = ", ".join(map(repr, self.choices))
            raise GraphError(f"{op}: attribute {name}={value!r} is not one of {known}")
        try:
            normal = _NORMAL[self.kind](value) if self.kind in _NORMAL else value
        except (OverflowError, TypeError, ValueError) as error:
            raise GraphError(f"{op}: attribute {name}={value!r}: {error}") from error
        for number in normal if isinstance(normal, tuple) else (normal,):
            if wrong := self._wrong(number):
                raise GraphError(f"{op}: attribute {name}={value!r}, expected {wrong}")
        return normal

    def _wrong(self, number: Any) -> str:
        """Return the expected values in place of a wrong number; nothing where the number fits."""
        if self.least is not None and not number >= self.least:
            return f"{self.least} or more"
        if self.kind in ("float", "floats") and self.finite and not abs(number) <= _FLOAT32_MAX:
            return "a finite number of float32"
        return ""


@dataclass(frozen=True)
class Call:
    """One use of an op, for the OpDef's functions: values in, types out, attributes filled in."""

    inputs: tuple[Value | None, ...]
    outputs: tuple[TensorType, ...]
    attrs: Mapping[str, Any]

    def input(self, position: int) -> Value | None:
        """Return the input at a position, None when it was left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def type(self, position: int) -> TensorType:
        """Return the type of an input that must be there."""
        value = self.inputs[position]
        if value is None:
            raise InternalError(f"input {position} was left out")
        return value.type


@dataclass(frozen=True)
class Sample:
    """Inputs that every device must compute correctly, for the op x device x sample test.

    quants, out_quants: the quantisation of inputs and outputs
    constants: the positions that are constants (weights)
    note: the case that the sample tests ("NaN", "odd sizes")
    """

    inputs: tuple[Array | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constants: frozenset[int] = frozenset()
    quants: tuple[Quant | None, ...] = ()
    out_quants: tuple[Quant | None, ...] = ()
    note: str = ""


def _no_samples(rng: np.random.Generator) -> Iterable[Sample]:
    return ()


def output_elements(call: Call) -> int:
    """Cost of an op that does one operation an output element."""
    return call.outputs[0].elements


def no_flops(call: Call) -> int:
    """Cost of an op that only moves bytes."""
    return 0


@dataclass(frozen=True)
class Axes:
    """The axes that an op works along; it treats every other axis alike.

    named: how a node names the axes: by its attribute `axis` or `axes`; by its attribute `axis`,
        which stands for all later axes too; by input 1; or by input 1 with a number for every axis
    does: the op's work along the axes
    """

    named: Literal["axis", "axes", "axis and after", "input", "number each"]
    does: Literal["normalises", "reduces", "accumulates", "joins", "cuts", "reverses", "repeats"]


@dataclass(frozen=True)
class OpDef:
    """A complete op: its meaning, and its traits.

    inputs / outputs: names in order; "bias?" may be left out, "xs*" takes any number (last only)
    doc: the formula, the shapes and the source
    dtypes: the dtypes that each input takes, in order; checked before `infer`
    infer: (*input Values or None, **attrs) -> output types without quantisation; raises ShapeError
    reference: (*arrays or None, **attrs) -> array or tuple of arrays; slow, obviously right: THE
        meaning of the op
    quantized: (call, *arrays or None) -> the same over stored integers when input 0 is quantised;
        None where the op does not have a quantised form; ops with `moves` True reuse `reference`
    flops: arithmetic operations of one call (a multiply-add counts as two)
    family: the kind of work, which calibration fits a cost curve to
    moves: the op only rearranges or selects elements, so it is right on stored integers unchanged
    effect: an effect beyond the outputs, whose order is kept: "reads" or "writes" the state in the
        attribute `state`, or "any". The reference of such an op takes `states`, the arrays by name.
    bounded: whether the types of the inputs bound the reference's time; an unbounded op is never
        computed while a model is loaded
    rtol: tolerance of float results, relative to the largest reference value; 0 is bit-exact

    Traits, which the samples prove (`tests/engine/ops/test_traits.py`):

    elementwise: an output element depends only on the elements at its place, inputs broadcast
    rearranges: every output element is an element of input 0; the other inputs choose which
    alias: the output is input 0, its bytes in order, under another shape or dtype
    commutes: the order of the inputs does not matter
    windows: an image whose type fits is refused only where no window fits into it, and then an
        output dimension would be below 1; further operands have dimensions of the output
    compares: the output is what the difference of the two inputs tells, whatever their size
    neutral: the y for which op(x, y) is x
    clamp: (low, high) of an op that is min(max(x, low), high)
    axes: the axes along which the op works; None where `Axes` cannot express them
    fill: the value of more elements along the named axes that leaves the result at the others as it
        is; None where there is none
    most: the most of each dimension of the outputs that only a run can tell; None without a bound
    axis_map: what a call does along each axis of its inputs, where other traits do not say it;
        `ops.axis_maps.axis_map_of` gives the map of any call
    layout_inputs: the inputs whose axes are in the order that the attribute `layout` gives
    main_input: the input whose dtype is the one that the op computes in
    integer_form: how an op on 8-bit values goes from quantised inputs to a quantised output:
        "table": one input, by 256 entries; "linear": products with weights, and a bias of int32;
        "own": from any quantisation to any other; "same": within one quantisation
    random: the outputs do not depend on the inputs alone
    """

    name: str
    inputs: str
    doc: str
    infer: Callable[..., tuple[TensorType, ...]]
    reference: Callable[..., Any]
    outputs: str = "y"
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    quantized: Callable[..., Any] | None = None
    flops: Callable[[Call], int] = output_elements
    samples: Callable[[np.random.Generator], Iterable[Sample]] = _no_samples
    family: str = "elementwise"
    moves: bool = False
    effect: Effect = ""
    bounded: bool = True
    rtol: float = 0.0
    elementwise: bool = False
    rearranges: bool = False
    alias: bool = False
    commutes: bool = False
    windows: bool = False
    compares: bool = False
    neutral: int | None = None
    clamp: tuple[float, float] | None = None
    axes: Axes | None = None
    fill: float | None = None
    most: Callable[[Call], Dim] | None = None
    axis_map: Callable[[Call], AxisMap | None] | None = None
    layout_inputs: tuple[int, ...] = ()
    main_input: int = 0
    integer_form: IntegerForm = ""
    random: bool = False
    dtypes: tuple[DtypeRule, ...] = field(kw_only=True)

    def __post_init__(self) -> None:
        likes = {rule.input for rule in self.dtypes if isinstance(rule, Like)}
        if len(self.dtypes) != len(self.input_names) or not likes <= set(self.input_names):
            raise InternalError(f"{self.name}: dtypes {self.dtypes} for inputs ({self.inputs})")

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs without the marks of optional and repeated ones."""
        return tuple(name.rstrip("?*") for name in self.inputs.split())

    @cached_property
    def has_body(self) -> bool:
        """Whether an attribute holds a graph."""
        return any(attr.kind == "graph" for attr in self.attrs.values())

    @cached_property
    def calls_python(self) -> bool:
        """Whether an attribute holds a function of the user."""
        return any(attr.kind == "operator" for attr in self.attrs.values())

    @cached_property
    def is_host_only(self) -> bool:
        """Whether it is the host's: control flow, an effect, or a function of the user.

        A device with memory for states runs their reads and writes too.
        """
        return self.has_body or self.calls_python or bool(self.effect)

    def bind(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return attributes in normal form with defaults filled in.

        Errors: GraphError, if one is missing, unknown or of the wrong kind
        """
        if not isinstance(given, Mapping):
            raise GraphError(f"{self.name}: attributes are {given!r}, expected values by name")
        unknown = sorted(map(str, set(given) - set(self.attrs)))
        if unknown:
            raise GraphError(
                f"{self.name}: unknown attribute {', '.join(unknown)}",
                facts=[f"known: {', '.join(sorted(self.attrs)) or 'none'}"],
            )
        bound: dict[str, Any] = {}
        for key, attr in self.attrs.items():
            value = given.get(key, attr.default)
            if value is REQUIRED:
                raise GraphError(f"{self.name}: attribute {key!r} is required")
            bound[key] = None if value is None else attr.check(self.name, key, value)
        return bound

    @property
    def arity(self) -> tuple[int, int | None]:
        """The least and the most inputs; the most is None when the last takes any number."""
        return _arity(self.inputs)

    @property
    def out_arity(self) -> tuple[int, int | None]:
        """The least and the most outputs; the most is None when the last takes any number."""
        return _arity(self.outputs)


@cache
def _arity(signature: str) -> tuple[int, int | None]:
    names = signature.split()
    least = sum(not name.endswith(("?", "*")) for name in names)
    return least, None if names and names[-1].endswith("*") else len(names)


_OPS: dict[str, OpDef] = {}


def _registering(make: Callable[Fields, OpDef]) -> Callable[Fields, OpDef]:
    """Return `make` with the same typed arguments; it also registers each op."""

    def define(*fields: Fields.args, **options: Fields.kwargs) -> OpDef:
        """Add an op to the registry, given the fields of its OpDef, and return it.

        Errors: InternalError, if the name is taken
        """
        op = make(*fields, **options)
        if op.name in _OPS:
            raise InternalError(f"op {op.name!r} is defined twice")
        _OPS[op.name] = op
        return op

    return define


define = _registering(OpDef)


@cache
def _fill() -> None:
    """Import the package that defines the ops; most processes that only run a model need none."""
    importlib.import_module("trireme.ops")


def get_op(name: str) -> OpDef:
    """Return the op called `name`; raise GraphError when there is none."""
    try:
        return _OPS[name]
    except (KeyError, TypeError):
        _fill()
    try:
        return _OPS[name]
    except (KeyError, TypeError):
        raise GraphError(f"unknown op {name!r}", facts=[f"{len(_OPS)} ops are known"]) from None


def has_op(name: str) -> bool:
    """Whether the registry has an op of that name."""
    _fill()
    return name in _OPS


def all_ops() -> Sequence[OpDef]:
    """Return every op, sorted by name."""
    _fill()
    return [_OPS[name] for name in sorted(_OPS)]


def ops_with(has_trait: Callable[[OpDef], object]) -> list[str]:
    """Return the names of the defined ops with a trait, sorted."""
    return [op.name for op in all_ops() if has_trait(op)]


def call_of(graph: Graph, node: Node) -> Call:
    """Return the Call of a node, for the functions of its OpDef."""
    return Call(
        tuple(None if i is None else graph.values[i] for i in node.inputs),
        tuple(graph.values[i].type for i in node.outputs),
        node.attrs,
    )
