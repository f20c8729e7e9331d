"""Sequences of tensors with a known length: lists of values, no nodes.

Exporters write them for split, chunk and unbind. One that is an input or output of the model is a
tensor for each element (`sequence_inputs`). One that is built in a loop cannot be expressed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trireme.converters.onnx.control import Convert
from trireme.converters.onnx.scope import GIVE_SIZES, NodeUse


def sequence(use: NodeUse) -> list[int]:
    """Return the values of the first input, which must be a sequence."""
    names = use.proto.input
    found = use.scope.sequence(names[0]) if names else None
    if found is None:
        raise use.error("input 0 is not a sequence of known length")
    return found


def index(use: NodeUse, position: int, length: int, default: int) -> int:
    """Return a constant position in a sequence, counted from the front."""
    if use.input(position) is None:
        return default
    data = use.array(position)
    if data is None or data.size != 1:
        raise use.error("the position in a sequence is not constant")
    found = int(data.reshape(-1)[0])
    if not -length <= found <= length:
        raise use.error(f"position {found} of a sequence of {length}")
    return found + length if found < 0 else found


def construct(use: NodeUse) -> list[int]:
    """SequenceConstruct, and SequenceEmpty without elements."""
    return [use.need(i) for i in range(len(use.inputs))]


def insert(use: NodeUse) -> list[int]:
    """SequenceInsert(sequence, x, position?), by default at the end."""
    values = list(sequence(use))
    values.insert(index(use, 2, len(values), len(values)), use.need(1))
    return values


def erase(use: NodeUse) -> list[int]:
    """SequenceErase(sequence, position?), by default the last."""
    values = list(sequence(use))
    place = index(use, 1, len(values), len(values) - 1)
    if place >= len(values):
        raise use.error(f"position {place} of a sequence of {len(values)}")
    return values[:place] + values[place + 1 :]


def split(use: NodeUse) -> list[int]:
    """SplitToSequence(x, split?): parts of one size, of given sizes, or of one element each."""
    shape = use.type().shape
    axis = use.take("axis", 0)
    if not -len(shape) <= axis < len(shape):
        raise use.error(f"axis {axis} of {len(shape)} dimensions")
    if not isinstance(shape[axis], int):
        raise use.error(f"axis {axis} is not of known size", GIVE_SIZES)
    size, sizes = int(shape[axis]), use.array(1)
    if use.input(1) is not None and sizes is None:
        raise use.error("split is not constant")
    if sizes is None or not sizes.ndim:
        each = 1 if sizes is None else int(sizes)
        if each < 1:
            raise use.error(f"parts of {each}")
        parts = [min(each, size - start) for start in range(0, size, each)]
    else:
        parts = [int(part) for part in sizes.reshape(-1)]
    if not parts:
        return []
    inputs = (use.need(0), use.constant(parts, "int64"))
    made = use.add_node("split", inputs, {"axis": axis}, len(parts))
    if sizes is not None or use.take("keepdims", 1):
        return list(made)
    return [use.add("squeeze", value, use.constant([axis], "int64")) for value in made]


def map_each(use: NodeUse, convert: Convert) -> list[list[int]]:
    """SequenceMap(sequence, sequences or tensors..): the body on each element, unrolled."""
    first, body = sequence(use), use.attrs["body"]
    columns = [use.scope.sequence(name) or [] for name in use.proto.input]
    rows: list[list[int]] = []
    for place in range(len(first)):
        names = {}
        for column, (formal, elements) in enumerate(zip(body.input, columns, strict=True)):
            if elements and len(elements) != len(first):
                raise use.error(f"sequences of {len(first)} and {len(elements)} elements")
            names[formal.name] = elements[place] if elements else use.need(column)
        rows.append(convert(use.scope.inner(names=names), body, False))
    return [[row[at] for row in rows] for at in range(len(body.output))]


MAKES: dict[str, Callable[[NodeUse], list[int]]] = {
    "Identity": lambda use: list(sequence(use)),
    "OptionalGetElement": lambda use: list(sequence(use)),
    "SequenceConstruct": construct,
    "SequenceEmpty": lambda use: [],
    "SequenceErase": erase,
    "SequenceInsert": insert,
    "SplitToSequence": split,
}
"""Ops that make a sequence."""
EITHER = ("Identity", "OptionalGetElement")
"""Those that make a tensor of a tensor."""
MAPS: dict[str, Callable[[NodeUse, Convert], list[list[int]]]] = {"SequenceMap": map_each}
"""Ops whose body makes the elements of sequences."""


def at(use: NodeUse) -> Sequence[int]:
    """SequenceAt(sequence, position)."""
    values = sequence(use)
    place = index(use, 1, len(values), 0)
    if place >= len(values):
        raise use.error(f"position {place} of a sequence of {len(values)}")
    return (values[place],)


def concat(use: NodeUse) -> Sequence[int]:
    """ConcatFromSequence, along an existing axis or a new one."""
    values, axis = sequence(use), use.attrs["axis"]
    if use.attrs.get("new_axis", 0):
        place = use.constant([axis], "int64")
        values = [use.add("unsqueeze", value, place) for value in values]
    return (use.add("concat", *values, axis=axis),)


READS: dict[str, Callable[[NodeUse], Sequence[int]]] = {
    "ConcatFromSequence": concat,
    "SequenceAt": at,
    "SequenceLength": lambda use: (use.constant(len(sequence(use)), "int64"),),
}
"""Ops that make a tensor from a sequence."""
