"""Control flow on arrays of any shape: who runs a body depends on its types alone.

A session whose shapes are known when it is made plans its control flow ahead. Where shapes vary
(growing carried values, branches of unequal shapes, loops that end by their data), a dynamic
session calls `ControlFlow.run_control` for each control node of a run.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from trireme.ir.graph import Graph, Node, TensorType
from trireme.ir.interpreter import evaluate
from trireme.ir.op import get_op
from trireme.ops.control import Repeat, bodies_of, no_rows, repeat_of, row_types
from trireme.passes.bodies import body_of
from trireme.passes.pipeline import optimise
from trireme.passes.turns import has_no_end
from trireme.runtime.control.body import Body, Workshop
from trireme.runtime.control.open_loop import OpenLoop
from trireme.runtime.control.operands import endless, timed_out
from trireme.runtime.dynamic.stage import has_little_work
from trireme.support.cancel import check_cancelled
from trireme.support.dtypes import Array, dtype_name
from trireme.support.errors import RunError, TriremeError

MOST_BODIES = 64
"""Compiled bodies that are kept; the one not used for longest goes first."""
MANY_TURNS, ASSUMED_TURNS = 256, 1000
"""Turns from which a loop is compiled whose types vary from run to run: a turn takes numpy 20 us,
and compiling 5 ms. A loop that only its condition ends is taken to have ASSUMED_TURNS.
"""
LITTLE = "its types vary, and it has little work"
Types = tuple[TensorType, ...]
Arrays = Sequence[Array]
RunGraph = Callable[[Graph, Arrays], list[Array]]
Operands = Sequence[Array | None]


@dataclass
class BodyUse:
    """What became of a body for inputs of certain types.

    runs: how often it ran; why: why numpy runs it, "" where it is compiled
    """

    name: str
    types: tuple[str, ...]
    runs: int = 0
    why: str = ""
    body: Body | OpenLoop | None = None


class ControlFlow:
    """Runs control nodes on arrays of any shape, on open devices.

    run_graph: runs a body whose shapes depend on data; numpy runs it when None
    """

    def __init__(self, workshop: Workshop, run_graph: RunGraph | None = None) -> None:
        self._workshop, self._run_graph = workshop, run_graph
        self._timeout_s = workshop.options.timeout_s
        self._uses: OrderedDict[Hashable, BodyUse] = OrderedDict()
        self._little: dict[Hashable, BodyUse] = {}
        self._varying: set[Graph] = set()

    @property
    def uses(self) -> list[BodyUse]:
        """What became of each body lately, the latest last."""
        return list(self._uses.values())

    def run_control(self, node: Node, arrays: Operands) -> list[Array]:
        """Return the outputs of an `if`, a `loop` or a `scan`.

        arrays: the operands in the node's order, None where one is left out
        Errors: RunError, if a loop takes longer than it may; those of the bodies
        """
        form = repeat_of(node.attrs)
        made = self._branch(node, arrays) if form is None else self._repeat(node, form, arrays)
        return made[: len(node.outputs)]

    def run_body(self, body: Graph, arrays: Arrays) -> list[Array]:
        """Return the outputs of a body, compiled or by numpy.

        A body of fixed types is compiled. One whose types vary, turn by turn, is compiled where it
        has much work. The number of runs plays no part: equal inputs give equal bits in every run.
        """
        if body in self._varying and (use := self._little.get((body, _sizes(arrays)))):
            use.runs += 1
            return self._interpreted(body, arrays)
        types = _types(arrays)
        key = body, types
        use = self._uses.get(key)
        if use is None:
            if _varies(body) and self._does_little(body, arrays):
                return self.run_body(body, arrays)
            use = self._add_use(key, BodyUse(body.name, tuple(map(str, types))))
            self._compile(use, body, types)
        else:
            self._uses.move_to_end(key)
        use.runs += 1
        return use.body(arrays) if isinstance(use.body, Body) else self._interpreted(body, arrays)

    def _add_use(self, key: Hashable, use: BodyUse) -> BodyUse:
        self._uses[key] = use
        if len(self._uses) > MOST_BODIES:
            self._uses.popitem(last=False)
        return use

    def _does_little(self, body: Graph, arrays: Arrays) -> bool:
        """Note a body that has little work even at the next larger powers of two.

        A value that grows turn by turn has other types in each; this is asked once for a range.
        """
        types = tuple(map(_rounded, _types(arrays)))
        try:
            if not has_little_work(body_of(body, types)):
                return False
        except TriremeError:
            return False
        if len(self._little) >= MOST_BODIES:
            self._little.clear()
        use = BodyUse(body.name, tuple(map(str, types)), why=LITTLE)
        self._little[body, _sizes(arrays)] = self._add_use((body, types), use)
        self._varying.add(body)
        return True

    def _compile(self, use: BodyUse, body: Graph, types: Types) -> None:
        """Compile a body for these types, or say why numpy runs it."""
        try:
            bound = body_of(body, types)
            if _varies(body) and has_little_work(bound):
                use.why = LITTLE
                return
            use.body, use.why = Body(optimise(bound), self._workshop), ""
        except TriremeError as error:
            use.why = error.summary

    def _interpreted(self, body: Graph, arrays: Arrays) -> list[Array]:
        """Return the outputs of a body by numpy; control flow inside it comes back here."""
        if self._run_graph is not None:
            return self._run_graph(body, arrays)
        env = {value.id: value.data for value in body.values.values() if value.data is not None}
        env.update(zip(body.inputs, arrays, strict=True))
        for node in body.nodes:
            operands = [None if i is None else env[i] for i in node.inputs]
            inner = get_op(node.op).has_body
            made = self.run_control(node, operands) if inner else evaluate(body, node, operands)
            env.update(zip(node.outputs, made, strict=True))
        return [env[value] for value in body.outputs]

    def _branch(self, node: Node, arrays: Operands) -> list[Array]:
        condition, *captures = _given(arrays)
        then, other = bodies_of(node).values()
        return self.run_body(then if _is_true(condition) else other, captures)

    def _repeat(self, node: Node, form: Repeat, arrays: Operands) -> list[Array]:
        trips, condition = (*arrays[: form.first], None, None)[:2]
        values = _given(arrays[form.first :])
        end = form.carried + len(form.slices)
        states, captures = values[: form.carried], values[end:]
        cut = [
            np.flip(np.moveaxis(x, axis, 0), 0) if backward else np.moveaxis(x, axis, 0)
            for x, (axis, backward) in zip(values[form.carried : end], form.slices, strict=True)
        ]
        most = turns_at_most(node, trips, cut)
        going = condition is None or _is_true(condition)
        kept: list[list[Array]] = [[] for _ in form.rows]
        if most is None and has_no_end(form):
            raise endless(node)
        if (
            going
            and most != 0
            and (loop := self._open_loop(node, form, states, cut, captures, most))
        ):
            turns, states, made = loop.run(states, cut, captures, most)
            ways = zip(made, form.rows, strict=True)
            return [*states, *(_laid(rows, axis, backward) for rows, (axis, backward) in ways)]
        deadline, turn = self._deadline(), 0
        while going and (most is None or turn < most):
            check_cancelled()
            first = [np.array(turn, np.int64), np.array(going)] if form.counts else []
            slices = [np.array(x[turn], order="C") for x in cut]
            made = self.run_body(form.body, [*first, *states, *slices, *captures])
            going = _is_true(made[0]) if form.counts else True
            rows = form.made + form.carried
            states = made[form.made : rows]
            for one, row in zip(kept, made[rows:], strict=True):
                one.append(row)
            turn += 1
            if deadline is not None and time.monotonic() > deadline:
                raise timed_out(node, turn, self._timeout_s or 0.0)
        if not turn:
            types = row_types(form, values, body_of)
            empty = [
                no_rows(*one) for one in zip(types, (axis for axis, _ in form.rows), strict=True)
            ]
            return [*states, *empty]
        return [
            *states,
            *(
                stacked(node, one[::-1] if backward else one, axis)
                for one, (axis, backward) in zip(kept, form.rows, strict=True)
            ),
        ]

    def _open_loop(
        self,
        node: Node,
        form: Repeat,
        states: Arrays,
        cut: Arrays,
        captures: Arrays,
        most: int | None,
    ) -> OpenLoop | None:
        """Return what runs all turns by itself; None where the host runs turn after turn.

        A body whose types vary from run to run is compiled where the turns have much work. The
        number of runs plays no part.
        """
        given = [*states, *(x[0] for x in cut), *captures]
        if any(array.dtype == object for array in given):
            return None
        types = _types(given)
        turns = ASSUMED_TURNS if most is None else most
        is_much = turns >= MANY_TURNS or not _varies(form.body)
        key = form.body, types, "turns", is_much
        use = self._uses.get(key)
        if use is None:
            use = self._add_use(key, BodyUse(form.body.name, tuple(map(str, types)), why=LITTLE))
            if is_much:
                self._compile_loop(use, node, form, types)
        else:
            self._uses.move_to_end(key)
        use.runs += 1
        return use.body if isinstance(use.body, OpenLoop) else None

    def _compile_loop(self, use: BodyUse, node: Node, form: Repeat, types: Types) -> None:
        """Compile a loop for these types of a turn, or say why the host drives it."""
        try:
            use.body, use.why = OpenLoop(node, form, types, self._workshop), ""
        except TriremeError as error:
            use.why = error.summary

    def _deadline(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s


def _types(arrays: Arrays) -> Types:
    return tuple(TensorType(a.shape, dtype_name(a.dtype)) for a in arrays)


def _sizes(arrays: Arrays) -> Hashable:
    """Return what arrays of the same types have in common, to the next powers of two."""
    return tuple((a.dtype, *[max(dim - 1, 0).bit_length() for dim in a.shape]) for a in arrays)


def _rounded(type: TensorType) -> TensorType:
    """Return a type whose sizes are the next powers of two."""
    sizes = (1 << max(dim - 1, 0).bit_length() for dim in type.dims)
    return TensorType(tuple(sizes), type.dtype)


def _laid(rows: Array, axis: int, backward: bool) -> Array:
    """Return rows in the order and along the axis that an output has them."""
    turned = np.flip(rows, 0) if backward else rows
    return np.ascontiguousarray(np.moveaxis(turned, 0, axis))


def _varies(body: Graph) -> bool:
    """Whether the inputs of a body may have other types in another turn or run."""
    return not all(body.type(value).is_static for value in body.inputs)


def _is_true(array: Array) -> bool:
    return bool(array.reshape(-1)[0])


def turns_at_most(node: Node, trips: Array | None, cut: Sequence[Array]) -> int | None:
    """Return the most turns of a loop: its trip count, or the length of what it cuts."""
    if trips is not None:
        return int(trips.reshape(-1)[0])
    lengths = {len(x) for x in cut}
    if len(lengths) > 1:
        raise RunError(f"{node.label}: the scanned inputs have lengths {sorted(lengths)}")
    return lengths.pop() if lengths else None


def _given(arrays: Operands) -> list[Array]:
    return [array for array in arrays if array is not None]


def stacked(node: Node, rows: Sequence[Array], axis: int) -> Array:
    """Return what the turns of a loop made, along a new axis.

    Errors: RunError, if the turns made arrays of several shapes
    """
    if len({row.shape for row in rows}) > 1:
        first, other = list(dict.fromkeys(row.shape for row in rows))[:2]
        raise RunError(
            f"{node.label}: a value to stack is {list(first)} in one turn and {list(other)} "
            "in another"
        )
    return np.stack(rows, axis)
