"""Loops of a captured program: unrolled over Python values, else nodes of the graph."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from trireme.converters.python.branches import Branches
from trireme.converters.python.calls import copied
from trireme.converters.python.control import Refused
from trireme.converters.python.dtypes import is_weak
from trireme.converters.python.iteration import Counts, Numbered, Zipped, parted
from trireme.converters.python.lifting import binary
from trireme.converters.python.python_calls import dimensions
from trireme.converters.python.scope import Recorder, RowList, Traced
from trireme.converters.python.sharing import changes_own_rows, expect_own, is_array
from trireme.converters.python.source import (
    changed_names,
    leaves_loop,
    nonlocal_names,
    sets_first,
    stored_names,
)
from trireme.converters.python.state import (
    NUMBERS,
    UNSET,
    Path,
    faults_in,
    plain,
)
from trireme.converters.python.statements import BREAK, CONTINUE, EXITS, RETURNED
from trireme.converters.python.turns import LoopPlan
from trireme.runtime.eager.operands import cast


@dataclass
class Loop:
    """A loop that is being read: the variables that are set at each of its breaks."""

    breaks: list[set[tuple[int, str]]] = field(default_factory=list)


class Loops(Branches):
    """Reads loops.

    unroll: the most turns of a loop over Python values that become nodes of their own
    """

    def __init__(self, recorder: Recorder, fallback: bool, unroll: int) -> None:
        super().__init__(recorder, fallback)
        self._unroll = unroll
        self.loops: list[Loop] = []
        self.readers |= {
            ast.For: self._for,
            ast.While: self._while,
            ast.Break: self._break,
            ast.Continue: self._continue,
        }

    def _break(self, node: ast.Break) -> None:
        self.loops[-1].breaks.append(
            {
                (id(frame), name)
                for frame in self.frames
                for name, value in frame.names.items()
                if value is not UNSET and next(faults_in(value), None) is None
            }
        )
        self.frame.names[BREAK] = True

    def _continue(self, node: ast.Continue) -> None:
        self.frame.names[CONTINUE] = True

    @contextmanager
    def _inside(self, node: ast.For | ast.While) -> Iterator[Loop]:
        """Open a loop: its breaks are its own, and its `else` runs where none happened."""
        frame, depth = self.frame, len(self.loops)
        saved = {flag: frame.names[flag] for flag in (BREAK, CONTINUE)}
        frame.names |= {BREAK: False, CONTINUE: False}
        loop = Loop()
        self.loops.append(loop)
        try:
            yield loop
            stop, broken = self.stopped((RETURNED, BREAK)), frame.names[BREAK]
        finally:
            del self.loops[depth:]
            frame.names |= saved
        if node.orelse and isinstance(stop, Traced):
            self._unbroken(node, loop, stop, broken)
        elif node.orelse and not stop:
            self.block(node.orelse)

    def _unbroken(
        self, node: ast.For | ast.While, loop: Loop, stop: Traced, broken: bool | Traced
    ) -> None:
        """Run the `else` of a loop where no exit happened; it may leave the loop around it."""
        returned = self.frame.names[RETURNED]

        def unbroken() -> None:
            self.frame.names[RETURNED] = False
            self.block(node.orelse)

        def stopped() -> None:
            if broken is False:
                self.frame.names[RETURNED] = True
            elif returned is False:
                self._set_at_breaks(loop)

        self.branch(self.negate(stop), unbroken, stopped)

    def _set_at_breaks(self, loop: Loop) -> None:
        """Note, after a break, that the variables of every break of a loop are set."""
        known = set.intersection(*loop.breaks) if loop.breaks else set()
        for frame in self.frames:
            for name, value in frame.names.items():
                if (id(frame), name) in known:
                    frame.names[name] = plain(value)

    def _for(self, node: ast.For) -> None:
        values = self.evaluate(node.iter)
        with self._inside(node) as loop:
            if isinstance(values, (Traced, Counts, Numbered, Zipped)):
                self._rolled(node, loop, values)
            else:
                self._known_items(node, loop, values)

    def _known_items(self, node: ast.For, loop: Loop, values: Any) -> None:
        items = list(values)
        turns = partial(self._turns, node, loop, items)
        is_short = len(items) <= self._unroll
        if is_short and not (leaves_loop(node.body) and self.trial(partial(self._leaves, turns))):
            turns()
            return
        if isinstance(values, range):
            self._rolled(node, loop, Counts(values.start, values.stop, values.step))
        elif _is_uniform(items):
            self._rolled(node, loop, items)
        else:
            turns()

    def _leaves(self, turns: Callable[[], None]) -> bool:
        """Whether an exit of some turns depends on a tensor."""
        turns()
        return isinstance(self.stopped((RETURNED, BREAK)), Traced)

    def _turns(self, node: ast.For, loop: Loop, items: Sequence[Any]) -> None:
        """Read the body once for each item."""
        flags = (RETURNED, BREAK)
        for at, item in enumerate(items):
            self.frame.names[CONTINUE] = False
            self.store(node.target, item)
            self.block(node.body)
            stop = self.stopped(flags)
            if stop is True:
                return
            if isinstance(stop, Traced):
                rest = items[at + 1 :]
                if rest:
                    self.where_not(stop, flags, partial(self._turns, node, loop, rest))
                return

    def _rolled(self, node: ast.For, loop: Loop, values: Any, is_rest: bool = False) -> None:
        """Emit a loop over what depends on tensors.

        is_rest: whether the first turn was read before
        """
        self._expect_own(node.body)
        is_read_first = changes_own_rows(node, values, self.names())
        count, item, tensors = self._iteration(values)
        known = None if isinstance(count, Traced) else count
        if known and not is_rest and self._starts_as_none(node.body):
            first, rest = parted(values)
            self.store(node.target, self._copied(first) if is_read_first else first)
            follow = partial(self._rolled, node, loop, rest, True)
            self._turn_and_rest(node, loop, follow if known > 1 else None)
            return
        scanned = tensors if tensors and not leaves_loop(node.body) else ()

        def body(turn: Traced | None, rows: list[Traced]) -> Any:
            self._start_turn(loop)
            waiting = list(rows)
            value = item(waiting) if turn is None else item(replace(turn, weak=True))
            self.store(node.target, self._copied(value) if is_read_first else value)
            self.block(node.body)
            self._expect_own(node.body)
            stop = self.stopped((RETURNED, BREAK))
            return self.negate(stop)

        trip = None if scanned else cast(self.recorder.lift(count), np.dtype(np.int64))
        surely = not isinstance(count, Traced) and count > 0
        target = ast.copy_location(ast.Assign([node.target], node.iter), node)
        assigned = self._assigned([target, *node.body])
        self.loop(LoopPlan(body, assigned, trip, None, scanned, surely))

    def _starts_as_none(self, body: list[ast.stmt]) -> bool:
        """Whether a variable that the body of a loop assigns is None, as `best = None` before it.

        A first turn that assigns a tensor makes it one for the other turns.
        """
        names = self.names()
        return any(names[at].get(name, UNSET) is None for at, name in self._assigned(body))

    def _turn_and_rest(
        self, node: ast.For | ast.While, loop: Loop, rest: Callable[[], None] | None
    ) -> None:
        """Read the body of a loop once, and the other turns where it does not leave the loop."""
        self.frame.names[CONTINUE] = False
        self.block(node.body)
        breaks = list(loop.breaks)
        stop = self.stopped((RETURNED, BREAK))
        if rest is not None and isinstance(stop, Traced):
            self.where_not(stop, (RETURNED, BREAK), rest)
        elif rest is not None and not stop:
            rest()
        loop.breaks[:] = [*breaks, *(one for one in loop.breaks if one not in breaks)]

    def _copied(self, value: Any) -> Any:
        """Return an item of a loop that shares its elements with no variable."""
        if isinstance(value, tuple):
            return tuple(map(self._copied, value))
        return copied(self.recorder, value) if is_array(value) else value

    def _expect_own(self, body: list[ast.stmt]) -> None:
        """Raise Refused if a turn changes an array that another variable shares.

        A turn knows what it gets of the last one as values of its own, so sharing is seen before
        the loop and at the end of a turn.
        """
        for name, value in self._changed(body).items():
            expect_own(self.names(), name, value)

    def _changed(self, body: list[ast.stmt]) -> dict[str, Any]:
        """Return the variables whose elements a turn changes, with their arrays now.

        A variable that each turn sets first is not among them: it leaves its array to others.
        """
        found = {}
        for name in sorted(one for one in changed_names(body) if not sets_first(body, one)):
            holder = self.frame.holder(name)
            value = None if holder is None else holder.names.get(name)
            if is_array(value):
                found[name] = value
        return found

    def _start_turn(self, loop: Loop) -> None:
        loop.breaks.clear()
        self.frame.names |= {flag: False for flag in EXITS}

    def _assigned(self, statements: list[ast.stmt]) -> set[Path]:
        """Return the variables that statements may assign, as (frame, name)."""
        names = stored_names(statements) | nonlocal_names(statements) | changed_names(statements)
        places = {id(frame): at for at, frame in enumerate(self.frames)}
        holders = ((name, self.frame.holder(name)) for name in names)
        return {(places[id(h)], name) for name, h in holders if h is not None and id(h) in places}

    def _iteration(self, values: Any) -> tuple[Any, Callable[[Any], Any], list[Traced] | None]:
        """Return the number of items, a function from a turn or rows to an item, and the tensors.

        The tensors are None where the items are not rows of tensors alone.
        """
        if isinstance(values, Traced):
            if not values.shape:
                raise Refused("a tensor without axes has no items")
            length = dimensions(values)[0]

            def row(at: Any) -> Any:
                if not isinstance(at, list):
                    return values[at]
                return values.as_item(at.pop(0)) if isinstance(values, RowList) else at.pop(0)

            return length, row, [values]
        if isinstance(values, Counts):
            return self._counted(values)
        if isinstance(values, Numbered):
            length, item, _ = self._iteration(values.values)
            return length, lambda at: (binary(operator.add, values.start, at), item(at)), None
        if isinstance(values, Zipped):
            found = [self._iteration(part) for part in values.parts]
            length = self._least([each for each, _, _ in found])
            tensors = [each for _, _, own in found for each in own or ()]
            only = all(own is not None for _, _, own in found)
            parts = [item for _, item, _ in found]
            if len({one.shape[0] for one in tensors}) > 1:  # zip ends with the shortest
                tensors = [one[:length] for one in tensors]
            return length, lambda at: tuple(p(at) for p in parts), tensors if only else None
        if isinstance(values, (list, tuple, np.ndarray, range)) and _is_uniform(list(values)):
            length, of_row, rows = self._iteration(self.recorder.lift(np.asarray(values)))
            if not all(map(is_weak, values)):
                return length, of_row, rows
            return length, lambda at: replace(of_row(at), weak=True), rows
        raise Refused(f"a loop over tensors runs over a {type(values).__name__} too")

    def _least(self, lengths: list[Any]) -> Any:
        known = {one for one in lengths if not isinstance(one, Traced)}
        traced = [one for one in lengths if isinstance(one, Traced)]
        if not traced:
            return min(known)
        return self.call(min, [*known, *traced], {}) if len(lengths) > 1 else lengths[0]

    def _counted(self, counts: Counts) -> tuple[Any, Callable[[Any], Any], None]:
        step = counts.step
        if isinstance(step, Traced) or not step:
            raise Refused("the step of a range is known only at a run; count in a while loop")
        start, stop = (self._whole(one) for one in (counts.start, counts.stop))
        low, high = (start, stop) if step > 0 else (stop, start)
        length = high if type(low) is int and low == 0 else binary(operator.sub, high, low)
        if abs(step) > 1:
            wide = binary(operator.add, length, abs(step) - 1)
            length = binary(operator.floordiv, wide, abs(step))

        def number(turn: Any) -> Any:
            scaled = turn if step == 1 else binary(operator.mul, turn, step)
            at_zero = not isinstance(start, Traced) and start == 0
            return scaled if at_zero else binary(operator.add, start, scaled)

        return length, number, None

    def _whole(self, value: Any) -> Any:
        return self.call(int, [value], {}) if isinstance(value, Traced) else operator.index(value)

    def _while(self, node: ast.While) -> None:
        with self._inside(node) as loop:
            first = self.tested(node.test)
            if first is False:
                return
            turns = partial(self._while_turns, node)
            if first is True and self.trial(turns):
                turns()
                return
            if first is True and self._starts_as_none(node.body):
                self._turn_and_rest(node, loop, partial(self._others, node, loop))
            else:
                self._emit_while(node, loop, first)

    def _others(self, node: ast.While, loop: Loop) -> None:
        """Emit the turns of a loop after the first."""
        first = self.tested(node.test)
        if first is not False:
            self._emit_while(node, loop, first)

    def _while_turns(self, node: ast.While) -> bool:
        """Read the turns of a loop over Python values; return whether no tensor decides."""
        for _ in range(self._unroll + 1):
            known = self.tested(node.test)
            if isinstance(known, Traced):
                return False
            if not known:
                return True
            self.frame.names[CONTINUE] = False
            self.block(node.body)
            stop = self.stopped((RETURNED, BREAK))
            if isinstance(stop, Traced):
                return False
            if stop:
                return True
        return False

    def _emit_while(self, node: ast.While, loop: Loop, first: Any) -> None:
        self._expect_own(node.body)
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        test = ast.copy_location(ast.Expr(node.test), node.test)

        def body(turn: Traced | None, rows: list[Traced]) -> Any:
            self._start_turn(loop)
            self.block(node.body)
            self._expect_own(node.body)
            self.node = node
            stop = self.stopped((RETURNED, BREAK))
            if not isinstance(stop, Traced):
                return not stop and self.tested(node.test)
            if endless:
                return self.negate(stop)
            return self.branch(self.negate(stop), lambda: self.tested(node.test), lambda: False)

        condition = first if isinstance(first, Traced) else None
        assigned = self._assigned([test, *node.body])
        self.loop(LoopPlan(body, assigned, None, condition, surely=condition is None))
        if not endless:
            return
        if loop.breaks:
            self._set_at_breaks(loop)
        elif isinstance(self.frame.names[RETURNED], Traced):
            self.frame.names[RETURNED] = True
        else:
            raise Refused("the loop has no end", final=True)


def _is_uniform(items: Sequence[Any]) -> bool:
    """Whether Python values can be the rows of one array."""
    if not items or not all(isinstance(one, NUMBERS) for one in items):
        return False
    shapes = {(np.shape(one), np.asarray(one).dtype) for one in items}
    return len(shapes) == 1
