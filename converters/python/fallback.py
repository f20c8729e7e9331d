"""A statement that no graph can express, as a Python operator: a `python` node on the host.

Comes in: the statement, and the variables that it reads. Goes out: the values of the variables that
it assigns. The statement runs once on the examples of the capture, which gives the types of the
node's outputs.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from trireme.converters.python.arguments import leaves, mapped
from trireme.converters.python.control import Refused
from trireme.converters.python.outer import frozen
from trireme.converters.python.scope import Recorder, Traced
from trireme.converters.python.source import FunctionSource, own_nodes, stored_names
from trireme.converters.python.state import MUTABLE, NUMBERS, faults_in
from trireme.ir.graph import UNKNOWN, TensorType
from trireme.ir.python_op import python_op
from trireme.support.dtypes import Array, dtype_name, numpy_dtype

_RESULT = "_result"
_PLAIN = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)
_COMPOUND = (ast.For, ast.While, ast.If, ast.Try, ast.Match)
_JUMPS = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.Await, ast.Global, ast.Nonlocal)


def run_in_python(
    recorder: Recorder,
    source: FunctionSource,
    statement: ast.stmt,
    find: Callable[[str], Any],
) -> dict[str, Any]:
    """Return the variables that a statement assigns, computed by a Python operator.

    find: returns the value of a variable of the program; raises KeyError for another name
    Errors: Refused, if the statement cannot run apart from the program
    """
    _expect_simple(statement)
    values = _read(statement, find)
    stored = [_RESULT] if isinstance(statement, ast.Return) else sorted(stored_names([statement]))
    inputs = [leaf for _, leaf in leaves("", values) if isinstance(leaf, Traced)]
    if not inputs or not stored:
        raise Refused("it reads or assigns no tensor")
    examples = [recorder.example(one) for one in inputs]
    if any(one is None for one in examples):
        raise Refused("a Python operator takes its types from examples, and there are none")
    run = _runner(source, statement, values, stored)
    held = {name: value for name, value in values.items() if name not in stored}
    results = run(*examples, held=held)
    made = [leaf for _, leaf in leaves("", results)]
    if not all(isinstance(one, NUMBERS) for one in made):
        raise Refused("it makes something else than tensors")
    static = all(one.type.is_static for one in inputs)
    types = [_type(one, static) for one in made]

    def function(*arrays: Array) -> tuple[Array, ...]:
        again = [leaf for _, leaf in leaves("", run(*arrays))]
        return tuple(_as_declared(one, type.dtype) for one, type in zip(again, types, strict=True))

    operator = python_op(
        function,
        outputs=[type.dtype for type in types],
        shape=lambda *shapes: types[0].shape if len(types) == 1 else [t.shape for t in types],
        name=source.place(statement),
    )
    outputs = recorder.apply("python", inputs, operator.attrs(), len(types))
    waiting = list(outputs) if isinstance(outputs, tuple) else [outputs]

    def leaf(name: str, value: Any) -> Any:
        one = waiting.pop(0)
        return recorder.traced(one.id, weak=type(value) in (int, float))

    return {name: mapped(leaf, name, v) for name, v in zip(stored, results, strict=True)}


def _expect_simple(statement: ast.stmt) -> None:
    """Raise Refused for a statement with effects beyond the variables that it assigns."""
    if not isinstance(statement, (*_PLAIN, *_COMPOUND)):
        raise Refused("it assigns nothing")
    for node in own_nodes([statement]):
        if isinstance(node, _JUMPS) and node is not statement:
            raise Refused("it leaves the block that it is in")
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            raise Refused("it changes a part of an object")


def _read(statement: ast.stmt, find: Callable[[str], Any]) -> dict[str, Any]:
    """Return the variables that a statement reads and that are set."""
    values = {}
    called = {
        node.func.value.id
        for node in own_nodes([statement])
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
    }
    stored = stored_names([statement])
    for name in _loaded(statement):
        try:
            value = find(name)
        except KeyError:
            continue
        if next(faults_in(value), None) is not None:
            if name in stored:  # set before it is read, or the statement fails on the examples
                continue
            raise Refused("it reads a variable that may not be set")
        if isinstance(value, MUTABLE) and name in called:
            raise Refused(f"it may change a {type(value).__name__}")
        values[name] = value
    return values


def _loaded(statement: ast.stmt) -> dict[str, None]:
    """Return the names that a statement reads, in order."""
    found: dict[str, None] = {}
    for node in ast.walk(statement):
        target = node.target if isinstance(node, ast.AugAssign) else node
        if isinstance(target, ast.Name) and (target is not node or isinstance(node.ctx, ast.Load)):
            found[target.id] = None
    return found


def _runner(
    source: FunctionSource, statement: ast.stmt, values: Mapping[str, Any], stored: list[str]
) -> Callable[..., list[Any]]:
    """Return a function from arrays to the values of the variables that a statement assigns.

    It raises Refused where the statement changes a variable that it does not assign, among `held`.
    """
    body: ast.stmt = copy.deepcopy(statement)
    if isinstance(statement, ast.Return):
        value = statement.value or ast.Constant(None)
        body = ast.Assign([ast.Name(_RESULT, ast.Store())], value)
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(body, statement)], []))
    code = compile(module, source.file, "exec")
    cells = {name: cell.cell_contents for name, cell in source.cells.items()}

    def run(*arrays: Any, held: Iterable[str] = ()) -> list[Any]:
        waiting = list(arrays)

        def leaf(name: str, value: Any) -> Any:
            if not isinstance(value, Traced):
                return value
            array = np.asarray(waiting.pop(0))
            return array.item() if value.weak else array[()]  # a weak one is a number of Python

        own = {name: mapped(leaf, name, value) for name, value in values.items()}
        scope = {**source.scope, **cells, **own}
        before = {name: frozen(own[name]) for name in held}
        exec(code, scope)
        if any(frozen(own[name]) != key for name, key in before.items()):
            raise Refused("it changes what other statements read")
        return [scope[name] for name in stored]

    return run


def _as_declared(value: Any, dtype: str) -> Array:
    """Return a result as an array; a number widens to the dtype, and is never cut to fit it."""
    array = np.asarray(value)
    widens = array.ndim == 0 and np.can_cast(array.dtype, numpy_dtype(dtype), "safe")
    return array.astype(dtype) if widens else array


def _type(value: Any, static: bool) -> TensorType:
    array = np.asarray(value)
    dims = array.shape if static else (UNKNOWN,) * array.ndim
    return TensorType(dims, dtype_name(array.dtype))
