"""Branches of a captured program as nodes, by what their paths do to the variables.

`branch` runs one path after the other from the same variables, and joins what differs into the
outputs of an `if`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from trireme.converters.python.dtypes import common, is_weak, to_type, type_of, zeros
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


class Control:
    """The frames of a program that is being captured, and its branches and loops."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.frames: list[Frame] = []
        self.places: dict[tuple[str, str], None] = {}

    def names(self) -> Names:
        """Return the variables of every frame."""
        return [frame.names for frame in self.frames]

    def install(self, names: Names) -> None:
        """Set the variables of every frame."""
        del self.frames[len(names) :]
        for frame, own in zip(self.frames, names, strict=True):
            frame.names = own

    def trial(self, run: Callable[[], Any]) -> Any:
        """Return what a function returns, and undo all that it does."""
        outer, before, places = self.recorder.scope, Snapshot(self.names()), dict(self.places)
        self.recorder.scope = GraphScope("trial", outer, before.leaves)
        try:
            return run()
        except Exception:  # what depends on a refused place says nothing of it
            places |= self.places
            raise
        finally:
            self.recorder.scope, self.places = outer, places
            self.install(before.restore())

    def branch(self, condition: Traced, then: Callable[[], Any], other: Callable[[], Any]) -> Any:
        """Return what the path taken returns; the variables hold what that path leaves in them."""
        outer, before = self.recorder.scope, Snapshot(self.names())
        scopes, ends = [], []
        for label, run in (("then", then), ("else", other)):
            self.recorder.scope = GraphScope(f"{label}_branch", outer, before.leaves)
            scopes.append(self.recorder.scope)
            try:
                result = run()
                ends.append(Snapshot([*self.names()[: len(before.names)], {"": result}]))
            finally:
                self.recorder.scope = outer
                self.install(before.restore())
        slots: list[_Slot] = []

        def differ(path: Path, a: Any, b: Any) -> Lost:
            versions = ends[0].as_was(a), ends[1].as_was(b)
            return Lost(two_forms(path, *versions, "on one path", "on another"))

        join = Join(before, *ends, partial(_joined_leaf, slots, scopes), differ)
        self._emit_if(condition, scopes, slots)
        *final, results = join.finished(lambda x: x.joined if isinstance(x, _Slot) else x)
        self.install(final)
        return results[""]

    def _emit_if(self, condition: Traced, scopes: Sequence[GraphScope], slots: list[_Slot]) -> None:
        outputs: list[list[Traced]] = [[], []]
        made: list[tuple[_Slot, bool]] = []
        for slot in slots:
            type, weak = _type_of_slot(slot)
            if type is None:
                slot.joined = Lost(_two_types(slot))
                continue
            if all(isinstance(version, bool) for version in slot.versions):
                truth = (
                    condition if slot.versions[0] else self.recorder.apply("not", [condition], {})
                )
                slot.joined = Maybe(truth) if slot.maybe else truth
                continue
            made.append((slot, weak))
            for scope, out, version in zip(scopes, outputs, slot.versions, strict=True):
                outer, self.recorder.scope = self.recorder.scope, scope
                unset = version is UNSET
                one = (
                    zeros(self.recorder, type)
                    if unset
                    else to_type(self.recorder, version, type.dtype)
                )
                out.append(one)
                self.recorder.scope = outer
        if not made:
            return
        ids = [[scope.find(one) for one in out] for scope, out in zip(scopes, outputs, strict=True)]
        captures = list(dict.fromkeys(c for scope in scopes for c in scope.captures))
        graphs = [scope.finish(out, [], captures) for scope, out in zip(scopes, ids, strict=True)]
        attrs = {"then_branch": graphs[0], "else_branch": graphs[1]}
        values = [condition, *map(self.recorder.traced, captures)]
        results = self.recorder.apply("if", values, attrs, len(made))
        several = results if isinstance(results, tuple) else (results,)
        for (slot, weak), result in zip(made, several, strict=True):
            model = slot.versions[0] if slot.versions[1] is UNSET else slot.versions[1]
            one = self.recorder.alike(self.recorder.traced(result.id, weak), model)
            self.recorder.name(one, slot.name)
            slot.joined = Maybe(one) if slot.maybe else one


def _joined_leaf(
    slots: list[_Slot], scopes: Sequence[GraphScope], path: Path, a: Any, b: Any
) -> Any:
    """Return what a leaf is after a branch: a slot for an output of the `if`, or what is known."""
    for one in (a, b):
        if isinstance(one, Lost):
            return one
    maybe = any(one is UNSET or isinstance(one, Maybe) for one in (a, b))
    x, y = (one.value if isinstance(one, Maybe) else one for one in (a, b))
    if x is UNSET or y is UNSET:
        known = y if x is UNSET else x
        inside = isinstance(known, Traced) and any(known.scope is one for one in scopes)
        if not inside:
            return Maybe(known)
    elif not (is_numeric(x) and is_numeric(y)):
        why = two_forms(path, x, y, "on one path", "on another")
        return Lost(why + in_place_of_none(x, y))
    slots.append(_Slot(name_of(path), (x, y), maybe))
    return slots[-1]


def _type_of_slot(slot: _Slot) -> tuple[TensorType | None, bool]:
    known = [one for one in slot.versions if one is not UNSET]
    types = [type_of(one) for one in known]
    weak = [is_weak(one) and type_of(one).dtype != "bool" for one in known]
    if len(known) == 1:
        return types[0], weak[0]
    if isinstance(known[0], RowList) != isinstance(known[1], RowList):
        return None, False
    return common(types[0], weak[0], types[1], weak[1]), all(weak)


def is_maybe(initial: Any) -> bool:
    """Whether only some paths, or none, have set a variable."""
    return initial is UNSET or isinstance(initial, Maybe)


def name_of(path: Path) -> str:
    """Return the name of a variable, or of a part of one, as "xs_0"."""
    return "_".join(str(part).strip("<>") for part in path[1:]) or "value"


def described(value: Any) -> str:
    """Return a value in words, for a message."""
    if isinstance(value, Maybe):
        return described(value.value)
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
