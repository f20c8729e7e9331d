"""Who runs a body of control flow on arrays of any shape: a compiled program, or numpy.

A body of fixed types is compiled. One whose types vary, turn by turn, is compiled where it has much
work, once for every shape if its device can. The number of runs plays no part: equal inputs give
equal bits in every run.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trireme.ir.alike import Sameness, sameness
from trireme.ir.graph import Graph, Node, TensorType
from trireme.ops.repeats import GOING, TURN, Repeat, pinned_inside
from trireme.passes.bodies import body_of
from trireme.passes.pipeline import optimise
from trireme.runtime.control.body import Body, Workshop
from trireme.runtime.control.growing import (
    GrowingForm,
    kinds_of_sizes,
    likeness_of,
    steps_of,
)
from trireme.runtime.control.growing_loop import GrowingLoop
from trireme.runtime.control.interpreted import InterpretedBody, RunControl
from trireme.runtime.control.open_loop import Compile, OpenBody, OpenLoop, pattern_of
from trireme.runtime.shapes.ahead import Shapes
from trireme.runtime.shapes.stage import has_branches, has_little_work, with_symbols
from trireme.runtime.shapes.variants import Chosen
from trireme.support.dtypes import Array, dtype_name
from trireme.support.errors import PlacementError, TriremeError

MANY_TURNS, ASSUMED_TURNS = 256, 1000
"""Turns from which a loop is compiled whose types vary from run to run: a turn takes numpy 20 us,
and compiling 5 ms. A loop that only its condition ends is taken to have ASSUMED_TURNS.
"""
GROWING_TURNS, GROWING_NODES = 64, 128
"""Turns, and nodes that all turns run, from either of which a loop whose states grow is compiled,
even if a turn has little work. numpy takes 8 us a node and 10 us a turn, compiling 10 ms or more.
"""
MOST_BODIES = 64
"""Compiled bodies that are kept; the one not used for longest goes first."""
LITTLE = "its types vary, and it has little work"
_FELL_BACK = {
    "types": "numpy runs it",
    "shapes": "no program serves all its shapes",
    "turns": "the host drives its turns",
}
Types = tuple[TensorType, ...]
Arrays = Sequence[Array]
MakeOpen = Callable[[Graph, Arrays], OpenBody | str]


@dataclass
class BodyUse:
    """What became of a body for inputs of certain types.

    runs: how often it ran; why: why numpy runs it, or turns of a loop that should run in native
        code; "" where it is compiled
    of: what is compiled: the body for its "types", the body for all "shapes", or a loop's "turns"
    """

    name: str
    types: tuple[str, ...]
    runs: int = 0
    why: str = ""
    body: Body | OpenBody | OpenLoop | GrowingLoop | None = None
    of: Literal["types", "shapes", "turns"] = "types"

    @property
    def fallback(self) -> str:
        """What is done where it is not compiled, and why."""
        return f"body '{self.name}': {_FELL_BACK[self.of]}: {self.why}"


class _Fallbacks(threading.local):
    """What fell back in a thread since somebody asked, by the use's id."""

    def __init__(self) -> None:
        self.uses: dict[int, BodyUse] = {}


@dataclass(frozen=True)
class BodyRun:
    """What runs a body.

    takes: whether it runs other types too, while `range_of` of the arrays stays the same
    """

    use: BodyUse
    run: Callable[[Arrays], list[Array]]
    takes: Callable[[Arrays], bool]

    def __call__(self, arrays: Arrays) -> list[Array]:
        """Return the outputs of the body, given its inputs in order."""
        self.use.runs += 1
        return self.run(arrays)


def _always(arrays: Arrays) -> bool:
    return True


def _never(arrays: Arrays) -> bool:
    return False


class Bodies:
    """The bodies that ran, and what runs each.

    run_control: runs a control node inside a body
    open_body: compiles a body for every shape, or says why not; None where no device can
    compile_open: compiles a graph with symbols, or says why not; None where no device can
    """

    def __init__(
        self,
        workshop: Workshop,
        run_control: RunControl,
        open_body: MakeOpen | None = None,
        compile_open: Compile | None = None,
    ) -> None:
        self._workshop, self._run_control, self._open_body = workshop, run_control, open_body
        self._compile_open = compile_open
        self._uses: OrderedDict[Hashable, BodyUse] = OrderedDict()
        self._interpreted: OrderedDict[Graph, InterpretedBody] = OrderedDict()
        self._ranges: dict[Hashable, BodyRun | None] = {}
        self._growths: dict[Hashable, Hashable | None] = {}
        self._same: dict[Graph, Sameness] = {}
        self._chosen: dict[Graph, Chosen[Graph] | None] = {}
        self._fallbacks = _Fallbacks()

    @property
    def uses(self) -> list[BodyUse]:
        """What became of each body lately, the latest last."""
        return list(self._uses.values())

    def take_fallbacks(self) -> tuple[str, ...]:
        """Return what was not compiled in this thread since the last call, and why."""
        taken, self._fallbacks.uses = self._fallbacks.uses, {}
        return tuple(dict.fromkeys(use.fallback for use in taken.values()))

    def _told(self, use: BodyUse) -> BodyUse:
        """Return a use; what fell back is kept for `take_fallbacks`."""
        if use.why:
            self._fallbacks.uses[id(use)] = use
        return use

    def run(self, body: Graph, arrays: Arrays) -> list[Array]:
        """Return the outputs of a body, compiled or by numpy."""
        return self.runner(body, arrays)(arrays)

    def runner(self, body: Graph, arrays: Arrays) -> BodyRun:
        """Return what runs a body on arrays of these types.

        A value that grows turn by turn has other types in each. Whether a body does little work is
        asked once for a range of sizes.
        """
        if not _varies(body):
            return self._of_types(body, arrays, _always)
        body = self._variant(body, tuple([array.shape for array in arrays]))
        key = body, range_of(arrays)
        if key not in self._ranges:
            if len(self._ranges) >= MOST_BODIES:
                self._ranges.clear()
            self._ranges[key] = self._little(body, arrays)
        if (little := self._ranges[key]) is not None:
            self._told(little.use)
            return little
        return self._opened(body, arrays) or self._of_types(body, arrays)

    def _variant(self, body: Graph, shapes: Shapes) -> Graph:
        """Return a body with the branches that shapes decide in place of its `if` nodes."""
        if body not in self._chosen:
            if len(self._chosen) >= MOST_BODIES:
                self._chosen.clear()
            named = with_symbols(body, {}) if has_branches(body) else None
            self._chosen[body] = None if named is None else Chosen(named, optimise)
        chosen = self._chosen[body]
        variant = None if chosen is None else chosen.at(shapes)
        return body if variant is None else self._variant(variant, shapes)

    def _of_types(
        self, body: Graph, arrays: Arrays, takes: Callable[[Arrays], bool] = _never
    ) -> BodyRun:
        """Return what runs a body on arrays of exactly these types."""
        types = _types(arrays)
        key = body, types
        use = self._uses.get(key)
        if use is None:
            use = self._add_use(key, BodyUse(body.name, tuple(map(str, types))))
            self._compile(use, body, types)
        else:
            self._uses.move_to_end(key)
        run = use.body if isinstance(use.body, Body) else self._by_numpy(body)
        if run is not use.body and (node := pinned_inside(body)) is not None:
            raise PlacementError(f"{node.label} is pinned to {node.pin}: {use.why}")
        return BodyRun(self._told(use), run, takes)

    def _little(self, body: Graph, arrays: Arrays) -> BodyRun | None:
        """Return numpy for a body with little work even at the next larger powers of two."""
        types = tuple(map(_rounded, _types(arrays)))
        try:
            if not has_little_work(body_of(body, types)):
                return None
        except TriremeError:
            return None
        use = BodyUse(body.name, tuple(map(str, types)), why=LITTLE)
        return BodyRun(self._add_use((body, types), use), self._by_numpy(body), _always)

    def _opened(self, body: Graph, arrays: Arrays) -> BodyRun | None:
        """Return a body that is compiled for every shape; None where it cannot be."""
        if self._open_body is None:
            return None
        key = self._sameness(body), pattern_of(body, arrays), "any shape"
        use = self._uses.get(key)
        if use is None:
            types = tuple(str(body.type(value)) for value in body.inputs)
            use = self._add_use(key, BodyUse(body.name, types, of="shapes"))
            try:
                made = self._open_body(body, arrays)
            except TriremeError as error:
                made = error.summary
            use.body, use.why = (None, made) if isinstance(made, str) else (made, "")
        else:
            self._uses.move_to_end(key)
        self._told(use)
        if not isinstance(use.body, OpenBody) or not use.body.takes(arrays):
            return None
        return BodyRun(use, use.body, use.body.takes)

    def _by_numpy(self, body: Graph) -> InterpretedBody:
        found = self._interpreted.get(body)
        if found is None:
            found = self._interpreted[body] = InterpretedBody(body, self._run_control)
            if len(self._interpreted) > MOST_BODIES:
                self._interpreted.popitem(last=False)
        return found

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
            names = tuple(map(str, types))
            use = self._add_use(key, BodyUse(form.body.name, names, why=LITTLE, of="turns"))
            if is_much:
                self._compile_loop(use, node, form, types)
        else:
            self._uses.move_to_end(key)
        use.runs += 1
        if is_much:
            self._told(use)
        return use.body if isinstance(use.body, OpenLoop) else None

    def growing(
        self, node: Node, grown: GrowingForm, given: Arrays, most: int | None
    ) -> GrowingLoop | None:
        """Return what runs the turns of a loop whose states grow; None where the host runs them.

        given, most: as of `loop`
        """
        form = grown.form
        compile_open = self._compile_open
        if compile_open is None or not _varies(form.body):
            return None
        if any(array.dtype == object for array in given):
            return None
        types = _types(given)
        turns = ASSUMED_TURNS if most is None else most
        key = form.body, types, min(turns, _least_turns(form.body))
        if key not in self._growths:
            if len(self._growths) >= MOST_BODIES:
                self._growths.clear()
            likeness = _growth_key(grown, types, turns)
            self._growths[key] = likeness and (self._sameness(form.body), form.rows, likeness)
        found = self._growths[key]
        if found is None:
            return None
        use = self._uses.get(found)
        if use is None:
            names = tuple(str(form.body.type(value)) for value in form.body.inputs)
            use = self._add_use(found, BodyUse(form.body.name, names, of="turns"))
            timeout_s = self._workshop.options.timeout_s
            try:
                use.body = GrowingLoop(node, form, grown.in_rooms, types, compile_open, timeout_s)
            except TriremeError as error:
                use.why = error.summary
        else:
            self._uses.move_to_end(found)
        use.runs += 1
        self._told(use)
        return use.body if isinstance(use.body, GrowingLoop) else None

    def note(self, body: GrowingLoop, why: str) -> None:
        """Note why the host ran turns of a compiled loop."""
        for use in self._uses.values():
            if use.body is body:
                use.why = why
                self._told(use)

    def _sameness(self, body: Graph) -> Sameness:
        """Return what is equal for bodies that are made again for other shapes around them."""
        if body not in self._same:
            if len(self._same) >= MOST_BODIES:
                self._same.clear()
            self._same[body] = sameness(body)
        return self._same[body]

    def _add_use(self, key: Hashable, use: BodyUse) -> BodyUse:
        self._uses[key] = use
        if len(self._uses) > MOST_BODIES:
            self._uses.popitem(last=False)
        return use

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


def _growth_key(grown: GrowingForm, types: Types, turns: int) -> Hashable | None:
    """Return what is equal for loops that one compiled loop serves; None where none is worth it.

    Few turns with little work are done before a program is compiled.
    """
    form = grown.form
    try:
        steps = steps_of(form, grown.in_rooms, types)
        if not any(map(any, steps)):
            return None
        is_short = turns < _least_turns(form.body)
        if is_short and has_little_work(_body_after(form, types, steps, turns)):
            return None
        kinds = kinds_of_sizes(form.body, form, types, steps)
    except TriremeError:
        return None
    return form.carried, form.slices, "grows", likeness_of(kinds)


def _least_turns(body: Graph) -> int:
    """Return the turns from which a loop whose states grow is compiled, whatever their work."""
    return min(GROWING_TURNS, -(-GROWING_NODES // max(len(body.nodes), 1)))


def _body_after(form: Repeat, types: Types, steps: Sequence[tuple[int, ...]], turns: int) -> Graph:
    """Return the body of a turn so many turns later, at the next larger powers of two."""
    later = [
        replace(type, shape=tuple([n + turns * m for n, m in zip(type.dims, by, strict=True)]))
        for type, by in zip(types, steps, strict=False)
    ]
    first = (TURN, GOING) if form.counts else ()
    return body_of(form.body, [*first, *map(_rounded, (*later, *types[len(later) :]))])


def _types(arrays: Arrays) -> Types:
    return tuple(TensorType(a.shape, dtype_name(a.dtype)) for a in arrays)


def range_of(arrays: Arrays) -> Hashable:
    """Return what arrays of the same types have in common, to the next powers of two."""
    return tuple((a.dtype, *[max(dim - 1, 0).bit_length() for dim in a.shape]) for a in arrays)


def _rounded(type: TensorType) -> TensorType:
    """Return a type whose sizes are the next powers of two."""
    sizes = (1 << max(dim - 1, 0).bit_length() for dim in type.dims)
    return TensorType(tuple(sizes), type.dtype)


def _varies(body: Graph) -> bool:
    """Whether the inputs of a body may have other types in another turn or run."""
    return not all(body.type(value).is_static for value in body.inputs)
