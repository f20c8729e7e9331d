"""Drive trireme itself, in a benchmark's worker process (the only file here that imports it)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[[], dict[str, Array]]


def open_engine(task: dict[str, Any], feeds: dict[str, Array]) -> tuple[Call, dict[str, Any]]:
    """Return a call of Session.run, and the nodes that run on the numpy reference.

    The task's "session" holds arguments of Session; its "execution_options" maps fields to values.
    Both caches are in the task's folder.
    """
    from trireme import __version__
    from trireme.runtime.options import ExecutionOptions
    from trireme.runtime.session import Session

    given, cache = dict(task["session"]), Path(task["cache"])
    given |= {"threads": task["threads"]}
    how = dict(given.pop("execution_options"))
    cpu = how["device_options"].setdefault("cpu", {})
    isa = cpu.get("isa")
    cpu["cache_dir"] = str(cache / "objects")
    options = ExecutionOptions(**how, model_cache=cache / "graphs")
    session = Session(task["model"], **given, execution_options=options)
    placed = session.placement
    labels = {node.id: node.label for node in placed.source.nodes}
    notes = {labels[n]: c.notes.get(c.device) for n, c in placed.choices.items()}
    slow = [f"{label}: {note}" for label, note in notes.items() if note]
    forced = [f"generates code for {isa}"] if isa else []
    facts = {"version": __version__, "reference_nodes": slow, "notes": forced}
    return lambda: session.run(feeds), facts
