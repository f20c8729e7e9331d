"""Drive trireme itself, in a benchmark's worker process (the only file here that imports it)."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[[], dict[str, Array]]


def open_engine(task: dict[str, Any], feeds: dict[str, Array]) -> tuple[Call, dict[str, Any]]:
    """Return a call of Session.run, and the nodes that run on the numpy reference."""
    from trireme.tools.options import open_session

    options = argparse.Namespace(**task["options"])
    options.threads, options.cache_dir = task["threads"], task["cache"]
    session = open_session(options, task["model"])
    placed = session.placement
    labels = {node.id: node.label for node in placed.source.nodes}
    notes = {labels[n]: c.notes.get(c.device) for n, c in placed.choices.items()}
    slow = [f"{label}: {note}" for label, note in notes.items() if note]
    forced = [f"generates code for {options.isa}"] if options.isa else []
    facts = {"version": version("trireme"), "reference_nodes": slow, "notes": forced}
    return lambda: session.run(feeds), facts
