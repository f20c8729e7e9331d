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

    The task's "session" holds arguments of Session; its options map fields to values.
    All caches are in the task's folder, those of devices too.
    """
    from trireme import __version__
    from trireme.backend.device import kind_of
    from trireme.backend.registry import kind_named
    from trireme.placement.options import PlacementOptions
    from trireme.runtime.options import ExecutionOptions
    from trireme.runtime.session import Session

    given, cache = dict(task["session"]), Path(task["cache"])
    given |= {"threads": task["threads"]}
    how = dict(given["execution_options"])
    chosen = {kind: dict(some) for kind, some in how.pop("device_options").items()}
    forced = [f"{kind}: {name}={v}" for kind, some in chosen.items() for name, v in some.items()]
    for kind in map(kind_of, given["devices"]):
        if kind_named(kind).takes("cache_dir"):
            chosen.setdefault(kind, {})["cache_dir"] = str(cache / kind)
    given["placement_options"] = PlacementOptions(**given["placement_options"])
    given["execution_options"] = ExecutionOptions(
        **how, device_options=chosen, model_cache=cache / "graphs"
    )
    session = Session(task["model"], **given)
    placed = session.placement
    labels = {node.id: node.label for node in placed.source.nodes}
    notes = {labels[n]: c.notes.get(c.device) for n, c in placed.choices.items()}
    slow = [f"{label}: {note}" for label, note in notes.items() if note]
    facts = {"version": __version__, "reference_nodes": slow, "notes": forced}
    return lambda: session.run(feeds), facts
