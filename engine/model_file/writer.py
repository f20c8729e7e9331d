"""Encode a Graph as the pieces of a .trm file. The same graph gives the same bytes.

The weights are not copied: the piece of a contiguous constant is a view of its memory. Unused
values are left out. `save` and `dumps` call it.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import flatbuffers
import numpy as np

from trireme.ir.graph import ANY_DIMS, UNKNOWN, Graph, Node, Quant, TensorType, Value
from trireme.ir.op import get_op
from trireme.model_file.attributes import (
    FIRST_SYMBOL,
    KINDS,
    NONE,
    UNKNOWN_DIM,
    UNKNOWN_RANK,
)
from trireme.model_file.layout import (
    HEADER_SIZE,
    IDENTIFIER,
    MAX_GRAPH_BYTES,
    MAX_NESTING,
    Header,
    align,
    require_little_endian,
)
from trireme.schema.generated import trireme_generated as fbs
from trireme.support.dtypes import Array, dtype_name, numpy_dtype
from trireme.support.errors import ModelFileError

Piece = bytes | memoryview


def encode(graph: Graph) -> list[Piece]:
    """Return the pieces of the file, in order.

    Errors: ModelFileError, if something in the graph has no form in a file
    """
    require_little_endian()
    weights = _Weights()
    try:
        graphs = _Graphs(weights)
        graphs.add(graph, 0)
        builder = flatbuffers.Builder(1 << 16)
        file = fbs.FileT(graphs=graphs.tables, buffers=weights.tables)
        report = getattr(graph, "quantization", None)  # that a QuantizedGraph has alone
        if report is not None:
            from trireme.ir.quantization.stored import report_text

            file.quantization = report_text(report)
        builder.Finish(file.Pack(builder), IDENTIFIER)
        encoded = bytes(builder.Output())
    except (TypeError, OverflowError, struct.error, UnicodeEncodeError) as error:
        raise ModelFileError(f"graph {graph.name!r} has no form in a file: {error}") from error
    if len(encoded) > MAX_GRAPH_BYTES:
        raise ModelFileError(
            f"graph {graph.name!r}: {len(encoded)} bytes without weights, "
            f"a file holds {MAX_GRAPH_BYTES}"
        )
    header = Header.of(encoded, weights.size)
    gap = header.weights_offset - HEADER_SIZE - len(encoded)
    return [header.encode(), encoded, bytes(gap), *weights.pieces]


class _Weights:
    """The trailing segment: each distinct run of bytes once, each at a multiple of 64."""

    def __init__(self) -> None:
        self.tables: list[Any] = []
        self.pieces: list[Piece] = []
        self.size = 0
        self._index: dict[object, int] = {}

    def add(self, array: Array) -> int:
        """Return the index of the buffer that holds the array's elements."""
        if dtype_name(array.dtype) == "string":
            texts = tuple(_text(item) for item in array.reshape(-1).tolist())
            return self._once(texts, lambda: fbs.BufferT(strings=list(texts)))
        dtype = numpy_dtype(dtype_name(array.dtype))
        flat = np.ascontiguousarray(array, dtype=dtype).reshape(-1).view(np.uint8)
        key = (flat.size, hashlib.blake2b(flat.data, digest_size=32).digest())
        return self._once(key, lambda: self._append(flat))

    def _once(self, key: object, make: Any) -> int:
        if key not in self._index:
            self._index[key] = len(self.tables)
            self.tables.append(make())
        return self._index[key]

    def _append(self, flat: Array) -> Any:
        start = align(self.size)
        self.pieces += [bytes(start - self.size), flat.data]
        self.size = start + flat.size
        return fbs.BufferT(offset=start, size=flat.size, crc32=zlib.crc32(flat.data))


class _Graphs:
    """The graphs of the file, bodies of control flow before the graph that uses them."""

    def __init__(self, weights: _Weights) -> None:
        self.tables: list[Any] = []
        self.weights = weights

    def add(self, graph: Graph, depth: int) -> int:
        """Append a graph and the bodies in it; return its index."""
        if depth > MAX_NESTING:
            raise ModelFileError(f"graph {graph.name!r}: bodies nest deeper than {MAX_NESTING}")
        used = {*graph.inputs, *graph.outputs}
        for node in graph.nodes:
            used.update(node.used, node.outputs)
        values = [graph.values[i] for i in sorted(used)]
        symbols = _symbols(graph, values)
        order = {name: position for position, name in enumerate(symbols)}
        table = fbs.GraphT(
            name=graph.name,
            inputs=list(graph.inputs),
            outputs=list(graph.outputs),
            symbols=[fbs.SymbolT(name, *bounds) for name, bounds in symbols.items()],
            values=[self.value(value, order) for value in values],
            nodes=[self.node(node, depth) for node in graph.nodes],
        )
        self.tables.append(table)
        return len(self.tables) - 1

    def value(self, value: Value, symbols: Mapping[str, int]) -> Any:
        buffer = None if value.data is None else self.weights.add(value.data)
        return fbs.ValueT(value.id, value.name, _type(value.type, symbols), buffer)

    def node(self, node: Node, depth: int) -> Any:
        return fbs.NodeT(
            id=node.id,
            op=node.op,
            inputs=[-1 if i is None else i for i in node.inputs],
            outputs=list(node.outputs),
            attrs=[self.attr(node, name, depth) for name in _stored(node)],
            source=node.source or None,
            pin=node.pin,
            after=list(node.after),
        )

    def attr(self, node: Node, name: str, depth: int) -> Any:
        value = node.attrs[name]
        if value is None:
            return fbs.AttrT(name=name, kind=NONE)
        kind = get_op(node.op).attrs[name].kind
        number, field = KINDS[kind]
        table = fbs.AttrT(name=name, kind=number)
        if kind == "array":
            table.tensorType = _type(TensorType(value.shape, dtype_name(value.dtype)), {})
            value = self.weights.add(value)
        elif kind == "graph":
            value = self.add(value, depth + 1)
        elif kind == "bool":
            value = int(value)
        elif kind == "operator":
            value = value.name
        setattr(table, field, list(value) if isinstance(value, tuple) else value)
        return table


def _stored(node: Node) -> list[str]:
    """Return the names of the attributes that a file has, in order."""
    known = get_op(node.op).attrs
    return [name for name in sorted(node.attrs) if known[name].stored]


def _symbols(graph: Graph, values: list[Value]) -> dict[str, tuple[int, int | None]]:
    """Return the bounds of every symbol the graph names or uses, sorted by name."""
    names = {dim for value in values for dim in value.shape if isinstance(dim, str)}
    names = (names | set(graph.symbols)) - {UNKNOWN, ANY_DIMS}
    return {name: graph.symbols.get(name, (0, None)) for name in sorted(names)}


def _type(type: TensorType, symbols: Mapping[str, int]) -> Any:
    shape = [_dim(dim, symbols) for dim in type.shape]
    return fbs.TensorTypeT(type.dtype, shape, None if type.quant is None else _quant(type.quant))


def _dim(dim: int | str, symbols: Mapping[str, int]) -> int:
    if not isinstance(dim, str):
        return int(dim)
    unnamed = {UNKNOWN: UNKNOWN_DIM, ANY_DIMS: UNKNOWN_RANK}
    return unnamed[dim] if dim in unnamed else FIRST_SYMBOL - symbols[dim]


def _quant(quant: Quant) -> Any:
    return fbs.QuantT(list(quant.scales), list(quant.zero_points), quant.axis, quant.rounding)


def _text(item: object) -> str:
    if isinstance(item, bytes):
        try:
            return item.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelFileError(f"a string constant is not UTF-8: {error}") from error
    if not isinstance(item, str):
        raise ModelFileError(f"a string constant holds {item!r}, which is not a string")
    return item
