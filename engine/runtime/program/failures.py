"""The error of a launch, with the launched task, its nodes and its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from trireme.support.errors import DeviceError, FaultKind, TriremeError

if TYPE_CHECKING:
    from trireme.plan.plan import Plan, Task

_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that Python raises where code or its arguments are wrong."""
_FREE_LOCK = ("release unlocked lock", "cannot release un-acquired lock")
_MOST_NODES = 4
"""Named in full; of more only the number is said."""


def interrupt_of(error: BaseException) -> BaseException:
    """Return the interrupt that an error comes of, else the error itself.

    A handler that raises while a Condition waits leaves its lock free. Then the lock's RuntimeError
    comes out, with the interrupt as its context.
    """
    within = error.__context__
    if not isinstance(error, RuntimeError) or error.__cause__ is not None or within is None:
        return error
    return within if str(error) in _FREE_LOCK or not isinstance(within, Exception) else error


def launch_error(where: Sequence[str], error: Exception) -> Exception:
    """Return the error of a launch, or of one of several that were waited for together.

    where: the tasks (`described`)

    An error of trireme's keeps its class and gains the facts; a fault of a device's code is a
    DeviceError. Any other error is the user's (a signal handler may raise it in the midst of a
    launch). It keeps its type, and gains a note.
    """
    if isinstance(error, TriremeError):
        named = type(error)(error.summary, facts=(*error.facts, *where), fix=error.fix)
        if isinstance(error, DeviceError) and isinstance(named, DeviceError):
            named.of_kind(error.kind).at_node(error.node)
            named.causes = error.causes
        return named.of_device(error.device)
    if isinstance(error, _FAULTS):
        is_memory = isinstance(error, MemoryError)
        kind = FaultKind.OUT_OF_MEMORY if is_memory else FaultKind.LAUNCH_FAILED
        found = DeviceError(f"a launch failed: {type(error).__name__}: {error}", facts=where)
        return found.of_kind(kind)
    for line in where:
        error.add_note(line)
    return error


def raise_named(plan: Plan, tasks: Sequence[int], error: Exception) -> NoReturn:
    """Raise the error of a launch with the launched task, or the interrupt that caused it."""
    raise named_error(partial(task_error, plan, tasks), error)


def raise_at(where: Sequence[str], error: Exception) -> NoReturn:
    """Raise the error of a launch with the tasks, described, or the interrupt that caused it."""
    raise named_error(partial(launch_error, where), error)


def named_error(name: Callable[[Exception], Exception], error: BaseException) -> BaseException:
    """Return the interrupt that an error comes of, else the error by another name, its cause."""
    found = interrupt_of(error)
    if not isinstance(found, Exception):
        found.__suppress_context__ = True
        return found
    named = name(found)
    if named is not found:
        named.__cause__ = found
    return named


def task_error(plan: Plan, tasks: Sequence[int], error: Exception) -> Exception:
    """Return the error of a launch with the tasks; a fault of a device has its name and node."""
    named = launch_error([described(plan, index) for index in tasks], error)
    if tasks and isinstance(named, DeviceError):
        computing = [plan.tasks[index] for index in tasks if not plan.tasks[index].is_copy]
        task = computing[0] if computing else plan.tasks[tasks[0]]
        named.of_device(_culprit(plan, task)).at_node(task.nodes[0].label)
        named.of_kind(FaultKind.LAUNCH_FAILED)
    return named


def _culprit(plan: Plan, task: Task) -> str:
    """Return the device of a task; of a copy, the device whose memory is not the host's."""
    if not task.is_copy:
        return task.device
    from trireme.backend.device import HOST
    from trireme.backend.links import link_ends

    source, target = link_ends(task.device)
    memory = target if source == HOST else source
    names = [name for name, spec in plan.placement.specs.items() if spec.memory == memory]
    return names[0] if names else ""


def described(plan: Plan, index: int) -> str:
    """Return the number, device and first nodes of a task."""
    task = plan.tasks[index]
    names = [node.label for node in task.nodes[:_MOST_NODES]]
    more = len(task.nodes) - len(names)
    rest = [f"and {more} nodes more"] if more else []
    return f"task {index} on {task.device}: {', '.join([*names, *rest])}"
