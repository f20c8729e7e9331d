"""Branches of a captured program: `if`, and the statements after an exit that a tensor decides.

A return, break or continue sets a flag. Where the flag depends on a tensor, the statements after it
become a branch on the flag.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from trireme.converters.python.scope import Traced
from trireme.converters.python.source import always_exits
from trireme.converters.python.statements import EXITS, Statements


class Branches(Statements):
    """Reads branches."""

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Read statements; those after an exit that a tensor decides run where none happened."""
        for at, statement in enumerate(statements):
            rest = statements[at + 1 :]
            if isinstance(statement, ast.If):
                if self._if(statement, rest):
                    return
            else:
                self._statement(statement)
            stop = self.stopped(EXITS)
            if stop is True:
                return
            if isinstance(stop, Traced) and rest:
                self.where_not(stop, EXITS, partial(self.block, rest))
                return

    def stopped(self, flags: Sequence[str]) -> Any:
        """Return whether one of some flags is set: a bool, or a Traced."""
        values = [self.frame.names[flag] for flag in flags]
        traced = [value for value in values if isinstance(value, Traced)]
        if any(value is True for value in values) or not traced:
            return any(value is True for value in values)
        stop = traced[0]
        for other in traced[1:]:
            stop = self.recorder.apply("or", [stop, other], {})
        return stop

    def where_not(self, stop: Traced, flags: Sequence[str], run: Callable[[], None]) -> None:
        """Run something where no exit happened; on the other path the exit is known."""
        set_flags = [flag for flag in flags if self.frame.names[flag] is not False]

        def going_on() -> None:
            self.frame.names |= {flag: False for flag in flags}
            run()

        def stopped() -> None:
            if len(set_flags) == 1:
                self.frame.names[set_flags[0]] = True

        self.branch(self.negate(stop), going_on, stopped)

    def _if(self, node: ast.If, rest: Sequence[ast.stmt]) -> bool:
        """Read an `if`; return whether the statements after it were read too."""
        self.node = node
        known = None
        with self.reported(node):
            known = self.tested(node.test)
        if known is None:
            return False
        if not isinstance(known, Traced):
            self.block(node.body if known else node.orelse)
            return False
        then, other = list(node.body), list(node.orelse)
        joined = always_exits(then) or always_exits(other)
        if always_exits(then):
            other += rest
        elif always_exits(other):
            then += rest
        with self.reported(node):
            self.branch(known, partial(self.block, then), partial(self.block, other))
        return joined
