"""The arguments of a program: tensors are inputs of its graph, Python values are constants of it.

An array, a scalar of numpy, an eager tensor or a TensorType is an input, in lists, tuples and dicts
too. Every other value (a number of Python, a text, a function) is part of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.converters.python.outer import frozen
from trireme.converters.python.scope import Recorder, RowList, Traced
from trireme.converters.python.state import like, parts_of, shape_of
from trireme.ir.graph import Dim, TensorType
from trireme.runtime.eager.eager import Tensor
from trireme.support.dtypes import Array, dtype_name
from trireme.support.errors import GraphError, RunError


def is_input(value: Any) -> bool:
    """Whether a value is a tensor, and so an input of the graph."""
    return isinstance(value, (np.ndarray, np.generic, Tensor, TensorType))


def _is_plain(value: Any) -> bool:
    """Whether a tensor has the operators of numpy's arrays, as a matrix or masked array has not."""
    return not isinstance(value, np.ndarray) or type(value) in (np.ndarray, np.memmap)


def _is_boxed(value: Any) -> bool:
    """Whether a value is an array without axes, which Python tells from a scalar of numpy."""
    return isinstance(value, np.ndarray) and not value.ndim


def elements(value: Any) -> Array | None:
    """Return the elements of an input; None for a type, which has none."""
    if isinstance(value, TensorType):
        return None
    return value.data if isinstance(value, Tensor) else np.asarray(value)


def type_of_input(value: Any) -> TensorType:
    """Return the type of an input."""
    if isinstance(value, TensorType):
        return value
    if isinstance(value, Tensor):
        return value.type
    array = np.asarray(value)
    return TensorType(array.shape, dtype_name(array.dtype))


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each leaf of an argument with its name, as "xs_0"."""
    if shape_of(value) is None:
        yield name, value
    else:
        for key, part in parts_of(value):
            yield from leaves(f"{name}_{key}", part)


def mapped(function: Callable[[str, Any], Any], name: str, value: Any) -> Any:
    """Return an argument with each leaf changed, given its name."""
    if shape_of(value) is None:
        return function(name, value)
    parts = {key: mapped(function, f"{name}_{key}", part) for key, part in parts_of(value)}
    return like(value, parts)


def as_inputs(
    recorder: Recorder,
    arguments: Mapping[str, Any],
    types: Callable[[str, TensorType], TensorType] | None = None,
    exact: bool = False,
) -> dict[str, Any]:
    """Return arguments by name with an input of the graph in place of each tensor.

    exact: whether an array that is listed again is one input
    Errors: GraphError, if an argument is of a class with operators of its own
    """
    made: dict[int, Traced] = {}

    def leaf(name: str, value: Any) -> Any:
        if not is_input(value):
            return value
        if exact and id(value) in made:
            return made[id(value)]
        if not _is_plain(value):
            raise GraphError(
                f"{name} is a {type(value).__name__}, whose operators are not an array's",
                fix="give np.asarray of it",
            )
        own = type_of_input(value)
        recorder.eager = recorder.eager or isinstance(value, Tensor)
        one = recorder.input(name, types(name, own) if types else own, elements(value))
        if recorder.like_arrays is not None and _is_boxed(value):
            recorder.like_arrays.boxed.add(one.id)
        made[id(value)] = one
        return one

    return {name: mapped(leaf, name, value) for name, value in arguments.items()}


@dataclass(frozen=True)
class Signature:
    """The types of a program's inputs and the keys of its constants, by the names of the leaves.

    forms: the lists, tuples and dicts around the leaves
    identities: which tensors are one object, and which are arrays without axes; None where no
        difference is made
    """

    types: Mapping[str, TensorType]
    constants: Mapping[str, Hashable]
    forms: Hashable
    identities: Hashable = None

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """Whether arguments have these types and constants; a symbol takes any one length."""
        if _forms(arguments) != self.forms:
            return False
        if self.identities is not None and _identities(arguments) != self.identities:
            return False
        symbols: dict[str, Dim] = {}
        seen: set[int] = set()
        for name, value in _all_leaves(arguments):
            if self.identities is not None and is_input(value) and id(value) in seen:
                continue
            seen.add(id(value))
            if not is_input(value):
                if name not in self.constants or self.constants[name] != frozen(value):
                    return False
            elif name not in self.types or not _fits(self.types[name], value, symbols):
                return False
        return True


def signature_of(
    arguments: Mapping[str, Any], types: Mapping[str, TensorType], exact: bool = False
) -> Signature:
    """Return the signature of arguments, given the types of their tensors by name.

    exact: whether it matters which tensors are one object
    """
    rest = {name: frozen(value) for name, value in _all_leaves(arguments) if not is_input(value)}
    return Signature(types, rest, _forms(arguments), _identities(arguments) if exact else None)


def _identities(arguments: Mapping[str, Any]) -> Hashable:
    tensors = [value for _, value in _all_leaves(arguments) if is_input(value)]
    first = {id(value): at for at, value in reversed(list(enumerate(tensors)))}
    return tuple((first[id(value)], _is_boxed(value)) for value in tensors)


def feeds_of(arguments: Mapping[str, Any]) -> dict[str, Array]:
    """Return the elements of the tensors among arguments, by the names of the inputs.

    Errors: RunError, if one is a type without elements
    """
    feeds = {}
    for name, value in _all_leaves(arguments):
        if is_input(value):
            found = elements(value)
            if found is None:
                raise RunError(f"argument {name} is the type {value}, expected a tensor")
            feeds[name] = found
    return feeds


def is_output(value: Any) -> bool:
    """Whether a result is an output of the graph: a tensor, or a constant array or number."""
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in "biuf"
    return isinstance(value, (Traced, Tensor, float))


def restored(form: Any, outputs: Sequence[Array]) -> Any:
    """Return what a program returned, with the outputs of the graph in their places."""
    waiting = list(outputs)

    def leaf(name: str, value: Any) -> Any:
        if not is_output(value):
            return value
        found = waiting.pop(0)
        if not isinstance(value, Traced):
            return value
        return list(found) if isinstance(value, RowList) else found

    return mapped(leaf, "", form)


def held_in(arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the leaves of arguments, with their names."""
    return list(_all_leaves(arguments))


def is_held(leaves: Sequence[tuple[str, Any]], arguments: Mapping[str, Any]) -> bool:
    """Whether the lists, tuples and dicts of arguments still have these leaves."""
    now = held_in(arguments)
    return len(now) == len(leaves) and all(
        name == other and value is one
        for (name, value), (other, one) in zip(now, leaves, strict=True)
    )


def _all_leaves(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in arguments.items():
        yield from leaves(name, value)


def _forms(value: Any) -> Hashable:
    if shape_of(value) is None:
        return None
    return type(value).__name__, tuple((key, _forms(part)) for key, part in parts_of(value))


def _fits(type: TensorType, value: Any, symbols: dict[str, Dim]) -> bool:
    given = type_of_input(value)
    if not _is_plain(value):
        return False
    if given.dtype != type.dtype or len(given.shape) != len(type.shape):
        return False
    for wanted, dim in zip(type.shape, given.shape, strict=True):
        expected = wanted if isinstance(wanted, int) else symbols.setdefault(wanted, dim)
        if expected != dim:
            return False
    return True
