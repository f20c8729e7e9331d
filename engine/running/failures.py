"""The error of a launch, with what was launched: the task, its nodes and its device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from trireme.errors import DeviceError, TriremeError
from trireme.plan import Plan

_FAULTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NameError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What Python raises where code is wrong or is given what it cannot work with."""
_MOST_NODES = 4
"""Named in full; of more only the number is said."""


def launch_error(plan: Plan, tasks: Sequence[int], error: Exception) -> Exception:
    """Return the error of a launch, or of one of several that were waited for together.

    An error of trireme's keeps its class and gains the facts; a fault of a device's code is a
    DeviceError. Anything else is the user's (a signal handler may raise it in the midst of a
    launch): it stays what it is, and gains a note.
    """
    where = [_described(plan, index) for index in tasks]
    if isinstance(error, TriremeError):
        named = type(error)(error.summary, facts=(*error.facts, *where), fix=error.fix)
        return named.of_device(error.device)
    if isinstance(error, _FAULTS):
        return DeviceError(f"a launch failed: {type(error).__name__}: {error}", facts=where)
    for line in where:
        error.add_note(line)
    return error


def raise_named(plan: Plan, tasks: Sequence[int], error: Exception) -> NoReturn:
    """Raise the error of a launch with what was launched."""
    named = launch_error(plan, tasks, error)
    if named is error:
        raise error
    raise named from error


def _described(plan: Plan, index: int) -> str:
    task = plan.tasks[index]
    names = [node.label for node in task.nodes[:_MOST_NODES]]
    more = len(task.nodes) - len(names)
    rest = [f"and {more} nodes more"] if more else []
    return f"task {index} on {task.device}: {', '.join([*names, *rest])}"
