"""Branches of a captured program as nodes, by what their paths do to the variables.

`branch` runs one path after the other from the same variables, and joins what differs into the
outputs of an `if`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from trireme.converters.python.dtypes import common, to_type, type_of, typed, zeros
from trireme.converters.python.scope import GraphScope, Recorder, RowList, Traced
from trireme.converters.python.state import (
    UNSET,
    Frame,
    Join,
    Lost,
    Maybe,
    Names,
    Path,
    Snapshot,
    is_numeric,
    known,
    shape_of,
)
from trireme.ir.graph import TensorType


class Refused(Exception):
    """A part of a program that no graph can express; the statement around it is reported.

    final: whether a Python operator cannot stand for it either
    """

    def __init__(self, why: str, node: ast.AST | None = None, *, final: bool = False) -> None:
        super().__init__(why)
        self.why, self.node, self.final = why, node, final


@dataclass(eq=False)
class _Slot:
    """A leaf that differs by the path: its versions, and the joined one once it is made."""

    name: str
    versions: tuple[Any, Any]
    maybe: bool
    joined: Any = None

    def set_ones(self) -> list[Any]:
        """Return the versions of the paths that set it."""
        return [one for one in self.versions if one is not UNSET]


class Control:
    """The frames of a program that is being captured, and its branches and loops."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.frames: list[Frame] = []
        self.places: dict[tuple[str, str], None] = {}
        self._entered: list[Frame] = []

    @property
    def frame(self) -> Frame:
        """The frame of the function that is being read."""
        return self._entered[-1]

    @contextmanager
    def entered(self, frame: Frame) -> Iterator[None]:
        """Make a frame the innermost for a while."""
        self.frames.append(frame)
        self._entered.append(frame)
        try:
            yield
        finally:
            self._entered.pop()
            if not frame.kept and any(one is frame for one in self.frames):
                self.frames[:] = [one for one in self.frames if one is not frame]

    def names(self) -> Names:
        """Return the variables of every frame."""
        return [frame.names for frame in self.frames]

    def install(self, names: Names) -> None:
        """Set the variables of every frame."""
        del self.frames[len(names) :]
        for frame, own in zip(self.frames, names, strict=True):
            frame.names = own

    @contextmanager
    def inside(self, scope: GraphScope) -> Iterator[None]:
        """Add nodes to a scope for a while."""
        outer, self.recorder.scope = self.recorder.scope, scope
        try:
            yield
        finally:
            self.recorder.scope = outer

    @contextmanager
    def apart(self, name: str, new: Names | None = None) -> Iterator[tuple[GraphScope, Snapshot]]:
        """Open a body, for a while; after it, all variables are as before.

        new: variables that the body has beside them
        """
        names = self.names()
        before = Snapshot([own | more for own, more in zip(names, new or names, strict=True)])
        scope = GraphScope(name, self.recorder.scope, before.leaves)
        self.install([dict(frame) for frame in before.names])
        try:
            with self.inside(scope):
                yield scope, before
        finally:
            before.restore()
            self.install(names)

    def trial(self, run: Callable[[], Any]) -> Any:
        """Return what a function returns, and undo all that it does."""
        places = dict(self.places)
        try:
            with self.apart("trial"):
                return run()
        except Exception:  # what depends on a refused place says nothing of it
            places |= self.places
            raise
        finally:
            self.places = places

    def branch(self, condition: Traced, then: Callable[[], Any], other: Callable[[], Any]) -> Any:
        """Return what the path taken returns; the variables hold what that path leaves in them."""
        scopes, ends = [], []
        for label, run in (("then", then), ("else", other)):
            with self.apart(f"{label}_branch") as (scope, before):
                result = run()
                ends.append(Snapshot([*self.names()[: len(before.names)], {"": result}]))
            scopes.append(scope)
        slots: list[_Slot] = []

        def differ(path: Path, a: Any, b: Any) -> Lost:
            versions = ends[0].as_was(a), ends[1].as_was(b)
            return Lost(two_forms(path, *versions, "on one path", "on another"))

        join = Join(before, ends[0], ends[1], partial(_joined_leaf, slots, scopes), differ)
        self._emit_if(condition, scopes, slots)
        *final, results = join.finished(lambda x: x.joined if isinstance(x, _Slot) else x)
        self.install(final)
        return results[""]

    def _emit_if(self, condition: Traced, scopes: Sequence[GraphScope], slots: list[_Slot]) -> None:
        outputs: list[list[Traced]] = [[], []]
        made: list[tuple[_Slot, bool]] = []
        for slot in slots:
            type = _type_of_slot(slot)
            if type is None:
                slot.joined = Lost(_two_types(slot))
                continue
            if all(isinstance(version, bool) for version in slot.versions):
                truth = condition
                if not slot.versions[0]:
                    truth = self.recorder.apply("not", [condition], {})
                slot.joined = Maybe(truth) if slot.maybe else truth
                continue
            made.append((slot, type[1]))
            for scope, out, version in zip(scopes, outputs, slot.versions, strict=True):
                with self.inside(scope):
                    out.append(self.held(version, type[0]))
        if not made:
            return
        ids = [[scope.find(one) for one in out] for scope, out in zip(scopes, outputs, strict=True)]
        captures = list(dict.fromkeys(c for scope in scopes for c in scope.captures))
        graphs = [scope.finish(out, [], captures) for scope, out in zip(scopes, ids, strict=True)]
        attrs = {"then_branch": graphs[0], "else_branch": graphs[1]}
        values = [condition, *map(self.recorder.traced, captures)]
        results = self.recorder.apply("if", values, attrs, len(made))
        several = results if isinstance(results, tuple) else (results,)
        for (slot, weak), made_one in zip(made, several, strict=True):
            slot.joined = self.given(made_one, weak, slot.set_ones()[-1], slot.name, slot.maybe)

    def held(self, value: Any, type: TensorType) -> Traced:
        """Return a leaf as a tensor of a type; of one that is not set, zeros that nothing reads."""
        if value is UNSET:
            return zeros(self.recorder, type)
        return to_type(self.recorder, known(value), type.dtype)

    def given(self, made: Traced, weak: bool, model: Any, name: str, maybe: bool) -> Any:
        """Return an output of a branch or a loop as the value of a variable.

        model: what the variable holds in the body
        """
        one = self.recorder.alike(self.recorder.traced(made.id, weak), known(model))
        self.recorder.name(one, name)
        return Maybe(one) if maybe else one


def _joined_leaf(
    slots: list[_Slot], scopes: Sequence[GraphScope], path: Path, a: Any, b: Any
) -> Any:
    """Return what a leaf is after a branch: a slot for an output of the `if`, or what is known."""
    for one in (a, b):
        if isinstance(one, Lost):
            return one
    maybe = any(one is UNSET or isinstance(one, Maybe) for one in (a, b))
    x, y = known(a), known(b)
    if x is UNSET or y is UNSET:
        one = y if x is UNSET else x
        if not isinstance(one, Traced) or all(one.scope is not scope for scope in scopes):
            return Maybe(one)
    elif not (is_numeric(x) and is_numeric(y)):
        why = two_forms(path, x, y, "on one path", "on another")
        return Lost(why + in_place_of_none(x, y))
    slots.append(_Slot(name_of(path), (x, y), maybe))
    return slots[-1]


def _type_of_slot(slot: _Slot) -> tuple[TensorType, bool] | None:
    versions = slot.set_ones()
    if len({isinstance(one, RowList) for one in versions}) > 1:
        return None
    return common(typed(versions[0]), typed(versions[-1]))


def is_maybe(initial: Any) -> bool:
    """Whether only some paths, or none, have set a variable."""
    return initial is UNSET or isinstance(initial, Maybe)


def name_of(path: Path) -> str:
    """Return the name of a variable, or of a part of one, as "xs_0"."""
    return "_".join(str(part).strip("<>") for part in path[1:]) or "value"


def described(value: Any) -> str:
    """Return a value in words, for a message."""
    value = known(value)
    if isinstance(value, (Traced, np.ndarray, np.generic)):
        return "a list as " * isinstance(value, RowList) + str(type_of(value))
    if value is UNSET:
        return "not set"
    if shape_of(value) is not None or isinstance(value, set):
        return f"a {type(value).__name__} of {len(value)}"
    return (
        repr(value)
        if isinstance(value, (bool, int, float, str, type(None)))
        else f"a {type(value).__name__}"
    )


def two_forms(path: Path, a: Any, b: Any, first: str, second: str) -> str:
    """Return the sentence on a variable that is one thing here and another there."""
    return f"{name_of(path)} is {described(a)} {first} and {described(b)} {second}"


def in_place_of_none(one: Any, other: Any) -> str:
    """Return what to write where a variable is None or a tensor; "" for other variables."""
    is_none = one is None or other is None
    return "; start with a number in place of None, such as -np.inf" if is_none else ""


def _two_types(slot: _Slot) -> str:
    a, b = map(described, slot.versions)
    return f"{slot.name} is {a} on one path and {b} on another; they need one dtype and rank"
