"""Drive trireme itself, in a benchmark's worker process (the only file here that imports it)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[[], dict[str, Array]]


def open_engine(
    task: dict[str, Any], feeds: dict[str, Array]
) -> tuple[Call, Callable[[], dict[str, Any]]]:
    """Return a call of Session.run, and what finds the nodes that run on the numpy reference.

    The task's "session" holds arguments of Session; its options map fields to values, and are left
    out where they are defaults. Its "python_ops" is the file of the Python
    operators, if any. The process's environment says where all caches are.
    """
    from trireme.runtime.session.session import Session

    given = {**task["session"], "threads": task["threads"]}
    how, asked = given.pop("execution_options"), given.pop("placement_options")
    if how or task.get("python_ops"):
        from trireme.runtime.program.options import ExecutionOptions
        from trireme.tools.python_ops import operators_of

        functions = operators_of(task.get("python_ops"))
        given["execution_options"] = ExecutionOptions(**how, python_ops=functions)
    if asked:
        from trireme.placement.options import PlacementOptions

        given["placement_options"] = PlacementOptions(**asked)
    chosen = how.get("device_options", {})
    forced = [f"{kind}: {name}={v}" for kind, some in chosen.items() for name, v in some.items()]
    session = Session(task["model"], **given)

    def facts() -> dict[str, Any]:
        from trireme import __version__

        stages = session.stages
        if len(stages) > 1 or not all(one.has_plan for one in stages):
            by_numpy = [one for one in stages if one.nodes and one.tier == "reference"]
            slow = [f"{one.nodes} nodes: {one.why}" for one in by_numpy]
            slow += [fallback for one in stages for fallback in one.fallbacks]
            ran = [f"the host ran {step}" for one in stages for step in one.steps]
            return {"version": __version__, "reference_nodes": slow, "notes": [*forced, *ran]}
        placed = session.placement
        labels = {node.id: node.label for node in placed.source.nodes}
        notes = {labels[n]: c.notes.get(c.device) for n, c in placed.choices.items()}
        slow = [f"{label}: {note}" for label, note in notes.items() if note]
        return {"version": __version__, "reference_nodes": slow, "notes": forced}

    return lambda: session.run(feeds), facts
