"""The error of a launch, with what was launched: the task, its nodes and its device."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.errors import DeviceError, TriremeError
from trireme.plan import Plan

_MOST_NODES = 4
"""Named in full; of more only the number is said."""


def launch_error(plan: Plan, tasks: Sequence[int], error: Exception) -> TriremeError:
    """Return the error of a launch, or of one of several that were waited for together.

    An error of trireme's keeps its class and gains the facts; any other is a DeviceError.
    """
    where = [_described(plan, index) for index in tasks]
    if isinstance(error, TriremeError):
        return type(error)(error.summary, facts=(*error.facts, *where), fix=error.fix)
    kind = type(error).__name__
    return DeviceError(f"a launch failed: {kind}: {error}", facts=where)


def _described(plan: Plan, index: int) -> str:
    task = plan.tasks[index]
    names = [node.label for node in task.nodes[:_MOST_NODES]]
    more = len(task.nodes) - len(names)
    rest = [f"and {more} nodes more"] if more else []
    return f"task {index} on {task.device}: {', '.join([*names, *rest])}"
