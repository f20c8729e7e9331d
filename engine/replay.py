"""Record a run so that it can be run again bit for bit, and find where two runs part.

A bundle is a folder: `run.json` (hash of the optimised graph, modes, seed, the plan's text, the
order of the tasks, a digest of every tensor that left one), `placement.toml` (a lockfile) and
`inputs.npz`. The model itself is not in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trireme.dtypes import Array
from trireme.errors import ModelFileError, RunError
from trireme.graph import Graph
from trireme.lockfile import lock, save_lock
from trireme.model_file import dumps
from trireme.running.interactive import Step
from trireme.session import Session

VERSION = 1


@dataclass(frozen=True)
class Digest:
    """A tensor that left a task: its name, who made it and where, SHA-256 of its bytes."""

    value: str
    node: str
    device: str
    sha256: str


@dataclass(frozen=True)
class Run:
    """What `run.json` holds; `order` is the indices of the plan's tasks as they ran."""

    version: int
    graph_sha256: str
    mode: str
    subgraphs: str
    execution: str
    seed: int
    plan: str
    order: tuple[int, ...]
    digests: tuple[Digest, ...]


def graph_hash(graph: Graph) -> str:
    """Return the SHA-256 of the graph's model file, pins left out: a placement holds as well."""
    free = replace(graph, nodes=tuple(replace(node, pin=None) for node in graph.nodes))
    return hashlib.sha256(dumps(free)).hexdigest()


def record(session: Session, feeds: Mapping[str, Array], seed: int = 0) -> Run:
    """Return the record of one run: the order in which its tasks started, and digests.

    Those of what it returned are of that very run. What left its tasks is gone by then: it is read
    from a second run, task by task in the same order. States begin anew for both, for what they
    were is not in a bundle.
    """
    session.states.clear()
    outputs, spans = session.run_traced(feeds)
    order = [span.task for span in sorted(spans, key=lambda span: span.start_s)]
    digests, _ = _step_by_step(session, feeds, order)
    return Run(
        VERSION, graph_hash(session.graph), session.runs.mode, session.subgraphs, session.execution,
        seed, str(session.plan), tuple(order), (*digests, *_returned(outputs)),
    )  # fmt: skip


def rerun(session: Session, feeds: Mapping[str, Array], recorded: Run) -> Run:
    """Return the record of the same run done again, task by task in the recorded order.

    Errors: RunError, if the model or the plan is not the one recorded
    """
    found = graph_hash(session.graph)
    if found != recorded.graph_sha256:
        raise RunError(
            "the model is not the one that was recorded",
            facts=[f"recorded {recorded.graph_sha256[:16]}", f"found    {found[:16]}"],
        )
    for was, now in zip(recorded.plan.splitlines(), str(session.plan).splitlines(), strict=False):
        if was != now:
            facts = [f"recorded {was.strip()}", f"found    {now.strip()}"]
            raise RunError("the plan is not the one that was recorded", facts=facts)
    digests, outputs = _step_by_step(session, feeds, recorded.order)
    return Run(**{**vars(recorded), "digests": (*digests, *_returned(outputs))})


def _step_by_step(
    session: Session, feeds: Mapping[str, Array], order: Sequence[int]
) -> tuple[list[Digest], dict[str, Array]]:
    """Return digests of all that leaves a task of a run in this order, and what it returns."""
    graph, found = session.plan.graph, list[Digest]()
    session.states.clear()

    def watch(step: Step) -> None:
        for value, array in step.values.items():
            maker = graph.producer(value)
            label = maker.label if maker else "input"
            found.append(Digest(graph.values[value].name, label, step.device, _sha256(array)))

    return found, session.run_nodes(feeds, watch, order)


def _returned(outputs: Mapping[str, Array]) -> list[Digest]:
    return [
        Digest(f"{name} (returned)", "the whole run", "session", _sha256(array))
        for name, array in outputs.items()
    ]


def _sha256(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def first_divergence(one: Run, two: Run) -> tuple[Digest, Digest] | None:
    """Return the first tensor, in the first run's order, that both made and made otherwise."""
    theirs = {digest.value: digest for digest in two.digests}
    for mine in one.digests:
        other = theirs.get(mine.value)
        if other is not None and other.sha256 != mine.sha256:
            return mine, other
    return None


def save_bundle(folder: Path, session: Session, run: Run, feeds: Mapping[str, Array]) -> None:
    """Write a bundle into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    save_lock(lock(session.placement), folder / "placement.toml")
    np.savez(folder / "inputs.npz", allow_pickle=False, **dict(feeds))
    (folder / "run.json").write_text(json.dumps(asdict(run), indent=1) + "\n")


def load_bundle(folder: Path) -> tuple[Run, dict[str, Array]]:
    """Return a bundle's record and inputs; its placement is `folder / "placement.toml"`.

    Errors: ModelFileError, if a file is absent or is not what it should be
    """
    try:
        raw: dict[str, Any] = json.loads((folder / "run.json").read_text())
        if raw["version"] != VERSION:
            raise ModelFileError(f"{folder}: version {raw['version']}, expected {VERSION}")
        raw["digests"] = tuple(Digest(**row) for row in raw["digests"])
        raw["order"] = tuple(int(index) for index in raw["order"])
        with np.load(folder / "inputs.npz", allow_pickle=False) as stored:
            feeds = {name: stored[name] for name in stored.files}
        return Run(**raw), feeds
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{folder} is not a bundle: {error}") from error
