"""Bind shapes to the open inputs of a model: by name, for any Graph.

A size binds a symbol everywhere: in other inputs and in the bodies of control flow too. A text such
as "seq<=512" names a symbol and bounds it, and the dimension stays open. The types of all other
values are inferred anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from trireme.ir.dims import Bounds, substituted, symbol_name, symbols_of
from trireme.ir.graph import UNKNOWN, Dim, Graph, Node, TensorType, Value
from trireme.ir.op import get_op
from trireme.ir.verify import check, infer_types
from trireme.support.errors import BranchError, BranchShapeError, ShapeError, TriremeError

Shapes = Mapping[str, Sequence[int | str]]
"""Shapes of inputs by name; a dimension is a size, or a symbol such as "seq" or "1<=seq<=512"."""
Refusal = TypeVar("Refusal", bound=TriremeError)
_SYMBOL = re.compile(r"(?:(\d+)<=)?([^<>=,\s]+?)(?:<=(\d+))?")
_IMAGE_SIZE = 224
_OTHER_SIZE = 16
"""Example sizes in advice for open dimensions, of images and of others; the first axis gets 1."""
ONE_BRANCH = (
    "leave the model's shapes open and give them to a session (shapes=, or `trireme run --shape`): "
    "each run takes one branch"
)
"""The fix of shapes that one branch refuses and the other takes."""
_MOST_SIZES = 4
"""Most sizes that one piece of advice names."""


def bind_shapes(graph: Graph, shapes: Shapes) -> Graph:
    """Return the graph with these shapes of its inputs, all types inferred anew.

    Shapes: a size or a symbol for each dimension of the input; a fixed dimension keeps its size
    Errors: ShapeError, if there is no such input, a shape does not fit, or a node refuses it
    """
    if not shapes:
        return graph
    symbols: dict[str, Dim] = {}
    bounds: dict[str, Bounds] = {}
    types = _types_of_inputs(graph, shapes, symbols, bounds)
    try:
        return _rebuilt(graph, symbols, types, bounds)
    except ShapeError as error:
        raise refused_sizes(error, graph, shapes) from error


def _types_of_inputs(
    graph: Graph, shapes: Shapes, symbols: dict[str, Dim], bounds: dict[str, Bounds]
) -> dict[int, TensorType]:
    """Return the types of inputs with their shapes; add what symbols become, and their bounds.

    Errors: ShapeError, if there is no such input or a shape does not fit
    """
    by_name = {value.name: value for value in graph.input_values()}
    types: dict[int, TensorType] = {}
    for name, shape in shapes.items():
        if name not in by_name:
            known = [f"{value.name} {value.type}" for value in by_name.values()]
            raise ShapeError(
                f"no input is called '{name}'",
                facts=[f"inputs: {', '.join(known)}"],
                fix="give the shape of one of these",
            )
        value = by_name[name]
        dims = tuple(named_dim(dim, bounds) for dim in shape)
        types[value.id] = _given_type(value, dims, symbols)
    _check_bounds(graph, symbols)
    return types


def refused_sizes(error: Refusal, graph: Graph, shapes: Shapes) -> Refusal:
    """Return the error of a model that refuses shapes of its inputs, with a fix.

    graph: the model without these shapes
    """
    try:
        _types_of_inputs(graph, shapes, {}, {})
        fix = other_sizes((v, shapes[v.name]) for v in graph.input_values() if v.name in shapes)
    except ShapeError as misfit:
        fix = misfit.fix
    if isinstance(error, BranchError):
        fix = ONE_BRANCH
    made = type(error)(error.summary, facts=error.facts, fix=error.fix or fix)
    if isinstance(made, BranchShapeError) and isinstance(error, BranchShapeError):
        made.node, made.branch = error.node, error.branch
    return made


def shapes_at(graph: Graph, sizes: Mapping[str, int]) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes of the inputs that have one of these symbols, with the sizes in place.

    Errors: ShapeError, if no input has a symbol of a name, or a size is outside its bounds
    """
    inputs = list(graph.input_values())
    known = {name for value in inputs for dim in value.shape for name in symbols_of(dim)}
    if unknown := sorted(set(sizes) - known):
        facts = [f"symbols: {', '.join(sorted(known)) or 'none'}"]
        fix = "give the size of one of these" if known else ""
        raise ShapeError(f"no input has the symbol {unknown[0]!r}", facts=facts, fix=fix)
    _check_bounds(graph, sizes)
    return {
        value.name: tuple(substituted(dim, sizes) for dim in value.shape)
        for value in inputs
        if any(symbols_of(dim) & sizes.keys() for dim in value.shape)
    }


def sizes_of(graph: Graph, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the sizes of symbols, given a shape for each input in order.

    Errors: ShapeError, if a shape does not fit its input or a size is outside its bounds
    """
    symbols: dict[str, Dim] = {}
    for value, shape in zip(graph.input_values(), shapes, strict=True):
        _given_type(value, tuple(shape), symbols)
    _check_bounds(graph, symbols)
    return {name: size for name, size in symbols.items() if isinstance(size, int)}


def value_at(value: Value, sizes: Mapping[str, Dim]) -> Value:
    """Return a value with sizes in place of the symbols of its shape."""
    dims = tuple(substituted(dim, sizes) for dim in value.shape)
    return replace(value, type=replace(value.type, shape=dims))


def with_known_sizes(graph: Graph) -> list[Value]:
    """Return the inputs of a graph, with sizes for symbols whose bounds allow one size."""
    sizes: dict[str, Dim] = {
        n: least for n, (least, most) in graph.symbols.items() if least == most
    }
    return [value_at(value, sizes) if sizes else value for value in graph.input_values()]


def is_open(shape: Sequence[int | str]) -> bool:
    """Whether a shape for `bind_shapes` leaves a dimension open."""
    return any(isinstance(dim, str) for dim in shape)


def named_dim(dim: int | str, bounds: dict[str, Bounds]) -> Dim:
    """Return a size or the name of a symbol; add the symbol's bounds to `bounds`."""
    if not isinstance(dim, str):
        return int(dim)
    found = _SYMBOL.fullmatch(dim.strip())
    if found is None or found[2] != symbol_name(found[2]):
        raise ShapeError(f"dimension {dim!r}: expected a size, or a symbol such as 'seq<=512'")
    least, name, most = int(found[1] or 0), found[2], int(found[3]) if found[3] else None
    if most is not None and least > most:
        raise ShapeError(f"dimension {dim!r}: the least size is above the most")
    bounds[name] = _within(name, bounds.get(name, (0, None)), (least, most))
    return name


def _within(name: str, one: Bounds, other: Bounds) -> Bounds:
    """Return the sizes that both bounds of a symbol allow.

    Errors: ShapeError, if there are none
    """
    least = max(one[0], other[0])
    most = min((top for top in (one[1], other[1]) if top is not None), default=None)
    if most is not None and least > most:
        raise ShapeError(f"symbol {name}: no size is within {_text(one)} and {_text(other)}")
    return least, most


def _text(bounds: Bounds) -> str:
    return f"{bounds[0]}..{'' if bounds[1] is None else bounds[1]}"


def retyped(graph: Graph, types: Sequence[TensorType]) -> Graph:
    """Return the graph with its inputs of these types, all others inferred anew.

    An input keeps its quantisation, and its sizes where the type given has none.
    Errors: ShapeError, if a node refuses them
    """
    given = {
        value.id: replace(value.type, shape=_known(type, value.type))
        for value, type in zip(graph.input_values(), types, strict=True)
    }
    return _rebuilt(graph, {}, given, {})


def _known(given: TensorType, declared: TensorType) -> tuple[Dim, ...]:
    if not given.has_rank or not declared.has_rank:
        return given.shape if given.has_rank else declared.shape
    pairs = zip(given.shape, declared.shape, strict=True)
    return tuple(dim if isinstance(dim, int) or old == UNKNOWN else old for dim, old in pairs)


def shape_advice(inputs: Iterable[Value]) -> str:
    """Return the fix of an error about open dimensions: shapes for all inputs with open dimensions.

    Empty without such inputs: then a size depends on the values of inputs.
    """
    open_inputs = [value for value in inputs if not value.type.is_static]
    return shapes_to_give({value.name: example_shape(value.shape) for value in open_inputs})


def shapes_to_give(examples: Mapping[str, Sequence[int]]) -> str:
    """Return example shapes in the forms of the command line and of Python."""
    if not examples:
        return ""
    options = [f"--shape {name}={','.join(map(str, dims))}" for name, dims in examples.items()]
    texts = ", ".join(f"{name!r}: {tuple(dims)}" for name, dims in examples.items())
    return f"give the inputs' shapes, e.g. {' '.join(options)}, or shapes={{{texts}}} in Python"


def other_sizes(given: Iterable[tuple[Value, Sequence[int | str]]]) -> str:
    """Return the fix of shapes that a node refuses: the open sizes that may be others.

    Empty where nothing is open.
    """
    sizes: dict[str, list[str]] = {}
    for value, shape in given:
        for axis, (dim, size) in enumerate(zip(value.shape, shape, strict=False)):
            if isinstance(dim, int) or isinstance(size, str):
                continue
            what = f"axis {axis}" if dim == UNKNOWN else dim
            sizes.setdefault(f"{what}={size}", []).append(value.name)
    texts = [f"{size} (of {', '.join(names)})" for size, names in sizes.items()]
    texts = [*texts[:_MOST_SIZES], *(["..."] if len(texts) > _MOST_SIZES else [])]
    return f"give other sizes than {' or '.join(texts)}" if texts else ""


def example_shape(shape: Sequence[Dim]) -> tuple[int, ...]:
    """Return a shape with sizes for what is open, as most models of such a rank take them."""
    size = _IMAGE_SIZE if len(shape) == 4 else _OTHER_SIZE
    return tuple(
        dim if isinstance(dim, int) else size if axis else 1 for axis, dim in enumerate(shape)
    )


def _given_type(value: Value, shape: tuple[Dim, ...], symbols: dict[str, Dim]) -> TensorType:
    """Return the type of an input with this shape; add what its symbols become to `symbols`."""
    where = f"input '{value.name}' {value.type}: shape {list(shape)} was given"
    if len(shape) != len(value.shape):
        fix = shape_advice([value])
        raise ShapeError(f"{where}, expected {len(value.shape)} dimensions", fix=fix)
    for dim, size in zip(value.shape, shape, strict=True):
        if (isinstance(size, int) and size < 0) or (isinstance(dim, int) and dim != size):
            raise ShapeError(where, fix="only dimensions that are not numbers can be given")
        if isinstance(dim, str) and dim != UNKNOWN and symbols.setdefault(dim, size) != size:
            raise ShapeError(
                f"{where}: symbol {dim} is bound to {symbols[dim]} and to {size}",
                fix=f"one size for all dimensions that are called {dim}",
            )
    return replace(value.type, shape=shape)


def _check_bounds(graph: Graph, symbols: Mapping[str, Dim]) -> None:
    for name, size in symbols.items():
        least, most = graph.symbols.get(name, (0, None))
        if isinstance(size, str):
            continue
        if size < least or (most is not None and size > most):
            raise ShapeError(
                f"symbol {name} is {size}, expected {_text((least, most))}",
                fix="a size within the bounds, or other bounds in shapes=",
            )


def _rebuilt(
    graph: Graph,
    symbols: Mapping[str, Dim],
    types: Mapping[int, TensorType],
    bounds: Mapping[str, Bounds],
) -> Graph:
    """Return the graph with symbols bound or renamed and types of inputs replaced."""
    values = dict(graph.values)
    for value in graph.input_values():
        type = types.get(value.id)
        if type is None:  # a shape that was given may use the model's names for other dimensions
            dims = tuple(substituted(dim, symbols) for dim in value.shape)
            type = replace(value.type, shape=dims)
        values[value.id] = replace(value, type=type)
    nodes = [_bound_node(node, symbols, bounds) for node in graph.nodes]
    for node in nodes:
        inputs = [None if i is None else values[i] for i in node.inputs]
        made = infer_types(get_op(node.op), inputs, node.attrs, len(node.outputs), node.label)
        for out, type in zip(node.outputs, made, strict=True):
            kept = values[out]
            values[out] = replace(kept, type=replace(type, quant=kept.quant))
    used = {name for value in values.values() for dim in value.shape for name in symbols_of(dim)}
    own = {str(symbols.get(name, name)): limits for name, limits in graph.symbols.items()}
    given = {n: _within(n, own.get(n, (0, None)), limits) for n, limits in bounds.items()}
    limits = {**dict.fromkeys(sorted(used), (0, None)), **own, **given}
    left = {name: limits[name] for name in limits if name in used}
    return check(replace(graph, nodes=tuple(nodes), values=values, symbols=left))


def _bound_node(node: Node, symbols: Mapping[str, Dim], bounds: Mapping[str, Bounds]) -> Node:
    """Return the node with symbols bound in its bodies.

    Errors: BranchShapeError, if one branch of an `if` refuses the sizes; ShapeError
    """
    bodies = {key: body for key, body in node.attrs.items() if isinstance(body, Graph)}
    if not bodies:
        return node
    bound: dict[str, Graph] = {}
    refused: dict[str, ShapeError] = {}
    for key, body in bodies.items():
        try:
            bound[key] = _rebuilt(body, symbols, {}, bounds)
        except ShapeError as error:
            refused[key] = error
    for key, first in refused.items():
        if not bound:
            raise first
        whole = BranchShapeError(first.summary, facts=first.facts, fix=first.fix)
        if not isinstance(first, BranchShapeError):
            whole.node, whole.branch = node.id, key
        raise whole from first
    return replace(node, attrs={**node.attrs, **bound})
