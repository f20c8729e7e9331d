"""Who runs a body of control flow on arrays of any shape: a compiled program, or numpy.

A body of fixed types is compiled. One whose types vary, turn by turn, is compiled where it has much
work. The number of runs plays no part: equal inputs give equal bits in every run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from trireme.ir.graph import Graph, Node, TensorType
from trireme.ir.interpreter import evaluate
from trireme.ir.op import get_op
from trireme.ops.control import Repeat
from trireme.passes.bodies import body_of
from trireme.passes.pipeline import optimise
from trireme.runtime.control.body import Body, Workshop
from trireme.runtime.control.open_loop import OpenLoop
from trireme.runtime.dynamic.stage import has_little_work
from trireme.support.dtypes import Array, dtype_name
from trireme.support.errors import TriremeError

MANY_TURNS, ASSUMED_TURNS = 256, 1000
"""Turns from which a loop is compiled whose types vary from run to run: a turn takes numpy 20 us,
and compiling 5 ms. A loop that only its condition ends is taken to have ASSUMED_TURNS.
"""
MOST_BODIES = 64
"""Compiled bodies that are kept; the one not used for longest goes first."""
LITTLE = "its types vary, and it has little work"
Types = tuple[TensorType, ...]
Arrays = Sequence[Array]
Operands = Sequence[Array | None]
RunControl = Callable[[Node, Operands], list[Array]]


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


class Bodies:
    """The bodies that ran, and what runs each.

    run_control: runs a control node inside a body
    """

    def __init__(self, workshop: Workshop, run_control: RunControl) -> None:
        self._workshop, self._run_control = workshop, run_control
        self._uses: OrderedDict[Hashable, BodyUse] = OrderedDict()
        self._little: dict[Hashable, BodyUse] = {}
        self._varying: set[Graph] = set()

    @property
    def uses(self) -> list[BodyUse]:
        """What became of each body lately, the latest last."""
        return list(self._uses.values())

    def run(self, body: Graph, arrays: Arrays) -> list[Array]:
        """Return the outputs of a body, compiled or by numpy."""
        if body in self._varying and (use := self._little.get((body, _sizes(arrays)))):
            use.runs += 1
            return self._interpreted(body, arrays)
        types = _types(arrays)
        key = body, types
        use = self._uses.get(key)
        if use is None:
            if _varies(body) and self._does_little(body, arrays):
                return self.run(body, arrays)
            use = self._add_use(key, BodyUse(body.name, tuple(map(str, types))))
            self._compile(use, body, types)
        else:
            self._uses.move_to_end(key)
        use.runs += 1
        return use.body(arrays) if isinstance(use.body, Body) else self._interpreted(body, arrays)

    def loop(self, node: Node, form: Repeat, given: Arrays, most: int | None) -> OpenLoop | None:
        """Return what runs all turns by itself; None where the host runs turn after turn.

        A body whose types vary from run to run is compiled where the turns have much work.
        given: states, slices and captures of a turn; most: the most turns
        """
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

    def _compile_loop(self, use: BodyUse, node: Node, form: Repeat, types: Types) -> None:
        """Compile a loop for these types of a turn, or say why the host drives it."""
        try:
            use.body, use.why = OpenLoop(node, form, types, self._workshop), ""
        except TriremeError as error:
            use.why = error.summary

    def _interpreted(self, body: Graph, arrays: Arrays) -> list[Array]:
        """Return the outputs of a body by numpy; control flow inside it comes back here."""
        env = {value.id: value.data for value in body.values.values() if value.data is not None}
        env.update(zip(body.inputs, arrays, strict=True))
        for node in body.nodes:
            operands = [None if i is None else env[i] for i in node.inputs]
            inner = get_op(node.op).has_body
            made = self._run_control(node, operands) if inner else evaluate(body, node, operands)
            env.update(zip(node.outputs, made, strict=True))
        return [env[value] for value in body.outputs]


def _types(arrays: Arrays) -> Types:
    return tuple(TensorType(a.shape, dtype_name(a.dtype)) for a in arrays)


def _sizes(arrays: Arrays) -> Hashable:
    """Return what arrays of the same types have in common, to the next powers of two."""
    return tuple((a.dtype, *[max(dim - 1, 0).bit_length() for dim in a.shape]) for a in arrays)


def _rounded(type: TensorType) -> TensorType:
    """Return a type whose sizes are the next powers of two."""
    sizes = (1 << max(dim - 1, 0).bit_length() for dim in type.dims)
    return TensorType(tuple(sizes), type.dtype)


def _varies(body: Graph) -> bool:
    """Whether the inputs of a body may have other types in another turn or run."""
    return not all(body.type(value).is_static for value in body.inputs)
