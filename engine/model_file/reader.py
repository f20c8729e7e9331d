"""Turn the bytes of a .trm file into a checked Graph whose constants are views of those bytes.

`flat` checks the structure of the FlatBuffer; this module checks its content: indices, ids, types,
sizes, attributes. `verify` then re-infers every type. `load` and `loads` call it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import trireme.ops  # noqa: F401  (fills the op registry)
from trireme.ir.dims import symbols_of
from trireme.ir.graph import Graph, Node, Value
from trireme.ir.op import get_op, has_op
from trireme.ir.python_op import PythonOp
from trireme.ir.verify import check
from trireme.model_file import attributes
from trireme.model_file.constants import ConstantArrays
from trireme.model_file.flat import FileDefect, Table, decode
from trireme.model_file.layout import HEADER_SIZE, MAX_NESTING, read_header, require_little_endian
from trireme.model_file.types import read_symbols, read_type
from trireme.support.dtypes import Array
from trireme.support.errors import ModelFileError, TriremeError

T = TypeVar("T")


def read(raw: Array, verify_weights: bool, python_ops: Mapping[str, PythonOp]) -> Graph:
    """Return the graph of a whole file given as read-only bytes; constants are views of them.

    Shapes: raw uint8[file size], starting at a multiple of 64
    python_ops: the functions that the file names
    Errors: ModelFileError, naming the field, or every function that is not given
    """
    require_little_endian()
    header = read_header(raw[:HEADER_SIZE].tobytes(), raw.size)
    encoded = raw[HEADER_SIZE : HEADER_SIZE + header.graph_size].tobytes()
    crc32 = zlib.crc32(encoded)
    if crc32 != header.graph_crc32:
        raise ModelFileError(
            f"header.graph_crc32: {header.graph_crc32:#010x}, the graph's is {crc32:#010x}: "
            "the file is damaged"
        )
    try:
        file = decode(encoded)
        constants = ConstantArrays(raw[header.weights_offset :])
        _each("buffers", file["buffers"], constants.add)
        if verify_weights:
            constants.verify()
        graph = _GraphReader(file, constants, python_ops).model()
        return _with_report(graph, file["quantization"])
    except FileDefect as fault:
        raise ModelFileError(fault.summary, facts=fault.facts, fix=fault.fix) from fault


def _with_report(graph: Graph, text: str | None) -> Graph:
    """Return the graph with the report of its quantisation, where the file has one."""
    if text is None:
        return graph
    from trireme.ir.quantization.report import QuantizedGraph, vars_of
    from trireme.ir.quantization.stored import report_from

    try:
        return QuantizedGraph(**vars_of(graph), quantization=report_from(text))
    except ValueError as error:
        raise FileDefect(f"is no report: {error}", at=".quantization") from error


def _each(name: str, items: Iterable[Any], read_one: Callable[[Any], T]) -> list[T]:
    """Read the elements of a vector, putting its name and the index in front of any fault."""
    done: list[T] = []
    try:
        for item in items:
            done.append(read_one(item))
    except FileDefect as fault:
        fault.within(f".{name}[{len(done)}]")
        raise
    except TriremeError as error:
        outer = FileDefect(error.summary, facts=error.facts, fix=error.fix)
        outer.within(f".{name}[{len(done)}]")
        raise outer from error
    return done


class _GraphReader:
    """Reads the graphs of a decoded file in order, so that bodies come before their users."""

    def __init__(
        self, file: Table, constants: ConstantArrays, python_ops: Mapping[str, PythonOp]
    ) -> None:
        self.file = file
        self.constants = constants
        self.python_ops = python_ops
        self.graphs: list[Graph] = []
        self.free: set[int] = set()
        self.depth: list[int] = []
        self.body_depth = 0

    def model(self) -> Graph:
        """Return the last graph; all others must be bodies in it."""
        if not self.file["graphs"]:
            raise FileDefect("is empty", at=".graphs")
        self.expect_functions()
        _each("graphs", self.file["graphs"], self.graph)
        unused = sorted(self.free - {len(self.graphs) - 1})
        if unused:
            raise FileDefect("is used by no node", at=f".graphs[{unused[0]}]")
        return self.graphs[-1]

    def expect_functions(self) -> None:
        """Raise one fault with the names of all functions that are not given."""
        named = {
            str(attr["text"])
            for graph in self.file["graphs"]
            for node in graph["nodes"]
            if has_op(node["op"]) and get_op(node["op"]).calls_python
            for attr in node["attrs"]
            if _is_operator(node["op"], attr["name"])
        }
        missing = sorted(named - set(self.python_ops))
        if missing:
            raise FileDefect(
                f"the graph calls Python functions that are not given: {', '.join(missing)}",
                facts=["a file holds the names alone, never code"],
                fix=f'python_ops={{"{missing[0]}": function}}',
            )

    def graph(self, table: Table) -> None:
        symbols = read_symbols(table["symbols"])
        names = list(symbols)
        self.body_depth = -1
        values = _each("values", table["values"], lambda value: self.value(value, names))
        nodes = _each("nodes", table["nodes"], self.node)
        graph = Graph(
            table["name"],
            table["inputs"],
            table["outputs"],
            tuple(nodes),
            {value.id: value for value in values},
            {name: bounds for name, bounds in symbols.items() if symbols_of(name) == {name}},
        )
        if len(graph.values) != len(values):
            raise FileDefect("an id is used twice", at=".values")
        _check_ids(graph)
        _check_rules(graph)
        if self.body_depth + 1 > MAX_NESTING:
            raise FileDefect(f"bodies nest deeper than {MAX_NESTING}")
        self.depth.append(self.body_depth + 1)
        self.free.add(len(self.graphs))
        self.graphs.append(graph)

    def value(self, table: Table, symbols: list[str]) -> Value:
        type = read_type(table["tensor_type"], symbols)
        if table["id"] < 0:
            raise FileDefect(f"id {table['id']} is negative")
        if table["buffer"] is None:
            return Value(table["id"], table["name"], type)
        return Value(table["id"], table["name"], type, self.constants.array(type, table["buffer"]))

    def node(self, table: Table) -> Node:
        op = get_op(table["op"])
        given: dict[str, Any] = {}

        def read_attr(attr: Table) -> None:
            name = attr["name"]
            if name in given:
                raise FileDefect(f"{name!r} is given twice")
            if name not in op.attrs:
                raise FileDefect(f"{op.name} has no attribute {name!r}")
            expected = op.attrs[name]
            if not expected.stored:
                raise FileDefect(f"{name!r} of {op.name} cannot be given by a file")
            kind = attributes.NAMES.get(attr["kind"], "none")
            if expected.kind == "operator" and kind == "str":
                kind = "operator"
            if attr["kind"] == attributes.NONE and expected.default is None:
                given[name] = None
            elif kind != expected.kind:
                raise FileDefect(f"{name!r} is of kind {kind}, expected {expected.kind}")
            else:
                given[name] = self.attr(attr, kind)

        _each("attrs", table["attrs"], read_attr)
        inputs = tuple(None if i == -1 else i for i in table["inputs"])
        return Node(
            table["id"],
            op.name,
            inputs,
            table["outputs"],
            op.bind(given),
            table["source"] or "",
            table["pin"],
            table["after"],
        )

    def attr(self, table: Table, kind: str) -> Any:
        field = attributes.KINDS[kind][1]
        stored = table[field]
        if stored is None:
            raise FileDefect(f"{field} is missing")
        if kind == "bool":
            if stored not in (0, 1):
                raise FileDefect(f"number {stored} is neither 0 nor 1")
            return bool(stored)
        if kind == "array":
            if table["tensor_type"] is None:
                raise FileDefect("tensor_type is missing")
            return self.constants.array(read_type(table["tensor_type"], ()), stored)
        if kind == "operator":
            return self.python_ops[stored]
        return self.body(stored) if kind == "graph" else stored

    def body(self, index: int) -> Graph:
        """Return an earlier graph that nothing has used so far: bodies form a tree."""
        if index not in self.free:
            raise FileDefect(f"graph {index} does not come before, or is used elsewhere")
        self.free.remove(index)
        self.body_depth = max(self.body_depth, self.depth[index])
        return self.graphs[index]


def _is_operator(op: str, attr: str) -> bool:
    known = get_op(op).attrs
    return attr in known and known[attr].kind == "operator"


def _check_ids(graph: Graph) -> None:
    """Check that every id leads to a value, and each value is an input, a constant or made."""
    known = graph.values.keys()
    for name, ids in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        for position, value in enumerate(ids):
            if value not in known:
                raise FileDefect(f"there is no value %{value}", at=f".{name}[{position}]")
    made = set(graph.inputs)
    for position, node in enumerate(graph.nodes):
        for value in (*node.used, *node.outputs):
            if value not in known:
                raise FileDefect(f"there is no value %{value}", at=f".nodes[{position}]")
        made.update(node.outputs)
    for position, entry in enumerate(graph.values.values()):
        if not entry.is_constant and entry.id not in made:
            raise FileDefect(f"%{entry.id} '{entry.name}' is never made", at=f".values[{position}]")


def _check_rules(graph: Graph) -> None:
    """Check the graph against the rules of graphs; all types are inferred again."""
    try:
        check(graph)
    except TriremeError:
        raise
    except Exception as error:
        # Inference may fail on attributes that no converter writes.
        raise FileDefect(f"types cannot be inferred: {type(error).__name__}: {error}") from error
