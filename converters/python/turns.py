"""Loops of a captured program: which variables a turn changes, and the node that carries them.

The body is read until the set of changing variables and their types settle. These variables are
the carried values of a `loop` or `scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trireme.converters.python.control import (
    Control,
    Refused,
    described,
    in_place_of_none,
    is_maybe,
    name_of,
    two_forms,
)
from trireme.converters.python.dtypes import as_weak, common, type_of, typed
from trireme.converters.python.lifting import leaves_of
from trireme.converters.python.lists import depth_of, item_of, items_of, joined_lists
from trireme.converters.python.scope import GraphScope, RowList, Traced
from trireme.converters.python.state import (
    UNSET,
    Growing,
    Join,
    Lost,
    Maybe,
    Names,
    Path,
    Snapshot,
    changed,
    is_numeric,
    is_same,
    known,
    like,
    parts_of,
    shape_of,
)
from trireme.ir.graph import TensorType

_MOST_PASSES = 50
"""The most times that a loop's body is read until its variables settle; each adds one at least."""


@dataclass(eq=False)
class _Carried:
    """A variable that changes from turn to turn: its value before the loop, and its type."""

    initial: Any
    type: TensorType
    weak: bool


@dataclass(eq=False)
class _Pass:
    """One reading of a body: the variables before the loop, as a turn has them, and after it.

    ends: what the turn leaves in each part that it changes
    """

    scope: GraphScope
    before: Snapshot
    start: Snapshot
    end: Snapshot
    going: Any
    formals: dict[Path, Traced]
    own: list[Traced]
    growing: dict[int, Growing]
    ends: dict[Path, Any] = field(default_factory=dict)


@dataclass
class LoopPlan:
    """A loop to emit.

    trip_count, condition: what limits it, None where nothing does
    scanned: tensors whose rows the body takes; then the loop is a `scan`
    surely: whether it runs at least once
    assigned: the variables that its body assigns, as (frame, name)
    body: called with the turn (None in a scan) and the rows; returns the next condition
    """

    body: Callable[[Traced | None, list[Traced]], Any]
    assigned: set[Path]
    trip_count: Traced | None = None
    condition: Traced | None = None
    scanned: Sequence[Traced] = ()
    surely: bool = False


@dataclass
class _Changes:
    """What the turns of a loop change, as far as the passes over its body have found.

    carried: the variables that become carried values
    lost: the variables that no graph can hold, with the sentences
    fixed: the variables that are assigned and stay as they were
    growing: the lists to which each turn appends, by identity, with their paths
    new: the variables that the body sets first, as unset ones
    """

    new: Names
    carried: dict[Path, _Carried] = field(default_factory=dict)
    lost: dict[Path, str] = field(default_factory=dict)
    fixed: set[Path] = field(default_factory=set)
    growing: dict[int, tuple[Path, list[Any]]] = field(default_factory=dict)

    def state(self) -> object:
        """Return a value that is equal after two passes when the second found nothing."""
        types = {path: (entry.type, entry.weak) for path, entry in self.carried.items()}
        return len(self.lost), len(self.growing), types

    def lose(self, path: Path, why: str) -> None:
        """Note that a variable, with all its parts, is lost."""
        self.lost[path] = why
        for inner in [one for one in self.carried if one[: len(path)] == path]:
            del self.carried[inner]


class Repetitions(Control):
    """The loops of a program that is being captured."""

    def loop(self, plan: LoopPlan) -> None:
        """Emit a loop; the variables then hold what its last turn leaves in them."""
        changes = _Changes([{} for _ in self.frames])
        places = dict(self.places)
        every: dict[tuple[str, str], None] = {}
        for _ in range(_MOST_PASSES):
            self.places = dict(places)
            try:
                one = self._read_body(plan, changes)
            except Exception:  # what depends on a refused place says nothing of it
                self.places |= every
                raise
            every |= self.places
            before = changes.state()
            self._compare(one, changes)
            if before == changes.state():
                still = [path for path in changes.carried if path not in one.ends]
                if not still:
                    break
                changes.fixed.update(still)
                for path in still:
                    del changes.carried[path]
        else:
            raise Refused("the types of the loop's variables do not settle")
        if "" in changes.lost.values():  # what an earlier pass refused is no longer reached
            self.places = every
        self._emit_loop(plan, one, changes)

    def _read_body(self, plan: LoopPlan, changes: _Changes) -> _Pass:
        """Run the body once on variables that stand for any turn."""
        with self.apart("body", changes.new) as (scope, before):
            own = self._own_inputs(scope, plan)
            formals: dict[Path, Traced] = {}
            growing = {
                key: Growing(name_of(path), scope, self.recorder)
                for key, (path, _) in changes.growing.items()
            }

            def entering(path: Path, leaf: Any) -> Any:
                if path in changes.lost:
                    return Lost(changes.lost[path])
                if id(leaf) in growing:
                    return growing[id(leaf)]
                may_change = path[:2] in plan.assigned and path not in changes.fixed
                if path not in changes.carried and may_change and is_numeric(leaf):
                    changes.carried[path] = _Carried(leaf, *typed(known(leaf)))
                if path not in changes.carried:
                    return leaf
                one = changes.carried[path]
                example = self._initial_example(one)
                formals[path] = self.recorder.input(name_of(path), one.type, example)
                maybe = is_maybe(one.initial)
                return self.given(formals[path], one.weak, one.initial, name_of(path), maybe)

            self.install(changed(self.names(), entering))
            start = Snapshot(self.names())
            going = plan.body(None if plan.scanned else own[0], own if plan.scanned else [])
            end = Snapshot(self.names()[: len(start.names)])
        return _Pass(scope, before, start, end, going, formals, own, growing)

    def _own_inputs(self, scope: GraphScope, plan: LoopPlan) -> list[Traced]:
        """Return the inputs of a body that every loop has, or the rows of a scan."""
        if not plan.scanned:
            return [
                self.recorder.input("turn", TensorType((), "int64"), np.zeros((), np.int64)),
                self.recorder.input("going", TensorType((), "bool"), np.ones((), np.bool_)),
            ]
        rows = [TensorType(x.type.shape[1:], x.type.dtype) for x in plan.scanned]
        own = [self.recorder.input(f"row_{i}", type) for i, type in enumerate(rows)]
        for row, tensor in zip(own, plan.scanned, strict=True):
            scope.rows[row.id] = tensor
            whole = self.recorder.example(tensor)
            if whole is not None and len(whole):
                scope.examples[row.id] = whole[0]
        return own

    def _initial_example(self, entry: _Carried) -> Any:
        if entry.initial is UNSET:
            return None
        found = self.recorder.example(known(entry.initial))
        return None if found is None else found.astype(entry.type.dtype)

    def _compare(self, one: _Pass, changes: _Changes) -> None:
        """Find what a turn changes: more carried variables, wider types, and lost variables."""
        carried, lost = changes.carried, changes.lost

        def leaf(path: Path, start: Any, end: Any) -> Any:
            one.ends[path] = end
            if isinstance(end, Lost):
                lost.setdefault(path, end.why)
            elif path in lost or isinstance(start, Lost):
                pass
            elif path in carried:
                _widen(carried[path], path, end, lost)
            elif start is not UNSET and not is_numeric(start) or not is_numeric(end):
                lost[path] = _two_kinds(path, start, end)
            else:
                carried[path] = _Carried(start, *typed(known(end if start is UNSET else start)))
                _widen(carried[path], path, end, lost)
            if path in lost:
                carried.pop(path, None)
            return end

        def differ(path: Path, old: Any, new: Any) -> Any:
            start, end = one.start.as_was(old), one.end.as_was(new)
            if isinstance(start, Lost) or isinstance(end, Lost):
                changes.lose(path, (start if isinstance(start, Lost) else end).why)
            elif one.before.holds(old) and _grows(start, end):
                changes.growing[id(old)] = path, old
            else:
                why = two_forms(path, start, end, "before the loop", "after a turn")
                more = isinstance(start, list) and isinstance(end, list) and len(end) > len(start)
                rule = "; append one item a turn, which may be a tuple, and join them later"
                changes.lose(path, why + rule * more)
            return new

        Join(one.before, one.start, one.end, leaf, differ)
        for key, growing in one.growing.items():
            if len(growing.items) != 1:
                path, _ = changes.growing.pop(key)
                why, rule = (
                    f"a turn appends {len(growing.items)} items to {growing.name}",
                    "a list grows by one a turn and is read after the loop",
                )
                if not growing.items:
                    why = f"not every turn appends an item to {growing.name} outside its branches"
                    rule = "choose the item in the branch, and append it once after that"
                changes.lose(path, f"{why}; {rule}")
        for new, start, end in zip(changes.new, one.start.names, one.end.names, strict=True):
            for name in (one for one in end if one not in start):
                new[name] = _unset(one.end, end[name])

    def _emit_loop(self, plan: LoopPlan, one: _Pass, changes: _Changes) -> None:
        recorder, carried = self.recorder, changes.carried
        initial = [self.held(entry.initial, entry.type) for entry in carried.values()]
        items = [item for each in one.growing.values() for item in each.items]
        with self.inside(one.scope):
            ends = [self.held(one.ends[path], entry.type) for path, entry in carried.items()]
            ends += [item_of(recorder, item) for item in items]
            if not plan.scanned:
                ends.insert(0, recorder.lift(one.going))
            results_of_body = list(map(recorder.use, ends))
        captures = one.scope.captures
        states = [one.formals[path].id for path in carried]
        own = [value.id for value in one.own]
        formal = [*states, *own] if plan.scanned else [*own, *states]
        attrs: dict[str, Any] = {"body": one.scope.finish(results_of_body, formal, captures)}
        attrs["carried"] = len(carried)
        outside = [recorder.traced(value) for value in captures]
        results: Any = ()
        values: list[Traced | None]
        count = len(carried) + len(one.growing)
        if count and plan.scanned:
            attrs["num_scan_inputs"] = len(plan.scanned)
            values = [*initial, *plan.scanned, *outside]
            results = recorder.apply("scan", values, attrs, count)
        elif count:
            limits = [plan.trip_count, plan.condition]
            values = [*limits, *initial, *outside]
            results = recorder.apply("loop", values, attrs, count)
        several = results if isinstance(results, tuple) else (results,)
        made = [recorder.traced(value.id) for value in several]
        made += [self._rows(one, changes, key, made.pop(len(carried))) for key in one.growing]
        self._leave_loop(plan, one, changes, dict(zip((*carried, *one.growing), made, strict=True)))

    def _rows(self, one: _Pass, changes: _Changes, key: int, made: Traced) -> Traced:
        """Return a list of before the loop with the items that its turns appended."""
        _, before = changes.growing[key]
        self.recorder.name(made, one.growing[key].name)
        items = one.growing[key].items
        rows = self.recorder.rows(as_weak(made, *leaves_of(items)), depth_of(items))
        return (
            joined_lists(self.recorder, items_of(self.recorder, before), rows) if before else rows
        )

    def _leave_loop(
        self,
        plan: LoopPlan,
        one: _Pass,
        changes: _Changes,
        results: dict[Any, Traced],
    ) -> None:
        carried, lost = changes.carried, changes.lost

        def leaf(path: Path, start: Any, end: Any) -> Any:
            if path not in carried:
                return Lost(lost.get(path, f"{name_of(path)} changes in a loop"))
            entry = carried[path]
            plain = plan.surely and not isinstance(end, Maybe)
            maybe = not plain and is_maybe(entry.initial)
            return self.given(results[path], entry.weak, end, name_of(path), maybe)

        def differ(path: Path, start: Any, end: Any) -> Any:
            return Lost(lost[path])

        join = Join(one.before, one.start, one.end, leaf, differ)
        rows = {id(value): results[key] for key, value in one.growing.items()}
        self.install(join.finished(lambda value: rows.get(id(value), value)))


def _unset(end: Snapshot, value: Any) -> Any:
    """Return a variable that a turn sets first as it is before: with nothing in its containers."""
    value = end.as_was(value)
    if isinstance(value, set):
        return value
    if shape_of(value) is None:
        return UNSET
    return like(value, {key: _unset(end, part) for key, part in parts_of(value)})


def _grows(before: Any, after: Any) -> bool:
    """Whether a list is the one of before with one more item."""
    both = isinstance(before, list) and isinstance(after, list)
    return both and len(after) == len(before) + 1 and all(map(is_same, before, after))


def _widen(entry: _Carried, path: Path, end: Any, lost: dict[Path, str]) -> None:
    """Give a carried variable the type that also holds its value after a turn."""
    value, first = known(end), known(entry.initial)
    is_list = isinstance(value, RowList)
    if not is_numeric(value) or (first is not UNSET and is_list != isinstance(first, RowList)):
        lost[path] = _two_kinds(path, entry.initial, value)
        return
    type = common((entry.type, entry.weak), typed(value))
    if type is None:
        lost[path] = (
            f"{name_of(path)} is {entry.type} before a turn of the loop and {type_of(value)} after "
            "it; a tensor keeps its dtype and rank"
        )
        return
    entry.type, entry.weak = type


def _two_kinds(path: Path, start: Any, end: Any) -> str:
    return (
        f"{name_of(path)} is {described(start)} before the loop and {described(end)} after a turn, "
        "so it is no tensor" + in_place_of_none(start, end)
    )
