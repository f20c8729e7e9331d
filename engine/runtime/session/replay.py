"""Record a run so that it can be run again bit for bit, and find where two runs part.

A bundle is a folder: `run.json` (hash of the optimised graph, modes, seed, the plan's text, the
order of the tasks, a digest of every input and of every tensor that left a task), `placement.toml`
(a lockfile) and `inputs.npz`, the bytes of the inputs. The model itself is not in it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from trireme.ir.graph import Graph
from trireme.model_file import dumps
from trireme.placement.lock import lock
from trireme.placement.lockfile import save_lock
from trireme.plan.plan import Plan
from trireme.plan.subgraphs import Execution, Subgraphs
from trireme.profiling.spans import TaskSpan
from trireme.runtime.loop.executors import Mode, WatchedTask
from trireme.runtime.session.session import Session
from trireme.support.arguments import checked, choice
from trireme.support.atomic import write_atomic
from trireme.support.dtypes import Array, dtype_name, numpy_dtype
from trireme.support.errors import ModelFileError, RunError

VERSION = 2
PLACEMENT = "placement.toml"
"""The file in a bundle that a session can be told to hold."""


@dataclass(frozen=True)
class Digest:
    """A tensor that left a task: its name, who made it and where, SHA-256 of its bytes."""

    value: str
    node: str
    device: str
    sha256: str


@dataclass(frozen=True)
class Given:
    """An input: its name, dtype and shape, SHA-256 of its bytes."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class RecordedRun:
    """The contents of `run.json`; `order` is the indices of the plan's tasks as they ran."""

    version: int
    graph_sha256: str
    mode: Mode
    subgraphs: Subgraphs
    execution: Execution
    seed: int
    plan: str
    order: tuple[int, ...]
    digests: tuple[Digest, ...]
    inputs: tuple[Given, ...]

    @property
    def all(self) -> tuple[Digest, ...]:
        """The digests of the inputs, too."""
        given = (Digest(one.name, "the caller", "host", one.sha256) for one in self.inputs)
        return (*given, *self.digests)


def graph_hash(graph: Graph) -> str:
    """Return the SHA-256 of the graph's model file, pins left out: a placement holds as well."""
    free = replace(graph, nodes=tuple(replace(node, pin=None) for node in graph.nodes))
    return hashlib.sha256(dumps(free)).hexdigest()


@checked(RunError)
def record(session: Session, feeds: Mapping[str, Array], seed: int = 0) -> RecordedRun:
    """Return the record of one run: the order in which its tasks started, and digests.

    The digests of its results are of that very run. The outputs of its tasks are gone by then. They
    come from a second run, task by task in the same order. States begin anew for both, because a
    bundle has no states.
    """
    session.states.clear()
    outputs, spans = session.run_traced(feeds)
    order = _started(session.plan, spans)
    digests, _ = _step_by_step(session, feeds, order)
    return RecordedRun(
        version=VERSION,
        graph_sha256=graph_hash(session.graph),
        mode=session.runs.mode,
        subgraphs=session.execution_options.subgraphs,
        execution=session.execution_options.execution,
        seed=seed,
        plan=str(session.plan),
        order=tuple(order),
        digests=(*digests, *_returned(outputs)),
        inputs=_given(session, feeds),
    )


def _started(plan: Plan, spans: Iterable[TaskSpan]) -> list[int]:
    """Return the tasks in the order in which they started, and after what they waited for: by the
    clock of a driver, which is told to within some microseconds, one may have started before.
    """
    start_s = {span.task: span.start_s for span in spans}
    left, order = {task.index: set(task.waits) for task in plan.tasks}, list[int]()
    while left:
        free = [task for task, waits in left.items() if not waits & left.keys()]
        order.append(min(free, key=lambda task: (start_s[task], task)))
        del left[order[-1]]
    return order


@checked(RunError)
def rerun(session: Session, feeds: Mapping[str, Array], recorded: RecordedRun) -> RecordedRun:
    """Return the record of the same run done again, task by task in the recorded order.

    Errors: RunError, if the model or the plan is not the one recorded
    """
    found = graph_hash(session.graph)
    if found != recorded.graph_sha256:
        raise _other_model(recorded.graph_sha256, found)
    lines = recorded.plan.splitlines(), str(session.plan).splitlines()
    for was, now in itertools.zip_longest(*lines, fillvalue="nothing"):
        if was != now:
            facts = [f"recorded {was.strip()}", f"found    {now.strip()}"]
            raise RunError("the plan is not the one that was recorded", facts=facts)
    digests, outputs = _step_by_step(session, feeds, recorded.order)
    made = (*digests, *_returned(outputs))
    return replace(recorded, digests=made, inputs=_given(session, feeds))


def _given(session: Session, feeds: Mapping[str, Array]) -> tuple[Given, ...]:
    arrays = [(value.name, np.asarray(feeds[value.name])) for value in session.inputs]
    return tuple(
        Given(name, dtype_name(array.dtype), array.shape, _sha256(array)) for name, array in arrays
    )


def _step_by_step(
    session: Session, feeds: Mapping[str, Array], order: Sequence[int]
) -> tuple[list[Digest], dict[str, Array]]:
    """Return digests of all task outputs of a run in this order, and its results."""
    graph, found = session.plan.graph, list[Digest]()
    session.states.clear()

    def watch(step: WatchedTask) -> None:
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


def first_divergence(one: RecordedRun, two: RecordedRun) -> tuple[Digest, Digest] | None:
    """Return the first tensor, in the first run's order, that both made and made otherwise.

    Inputs come first. A tensor that leaves a task in one run alone, since they were placed
    otherwise, is not compared; what the runs returned always is.
    Errors: RunError, if the runs are of different models
    """
    if one.graph_sha256 != two.graph_sha256:
        raise _other_model(one.graph_sha256, two.graph_sha256, "the first", "the second")
    theirs = {digest.value: digest for digest in two.all}
    for mine in one.all:
        other = theirs.get(mine.value)
        if other is not None and other.sha256 != mine.sha256:
            return mine, other
    return None


def compared(one: RecordedRun, two: RecordedRun) -> int:
    """Return of how many tensors two runs have digests of both."""
    return len({digest.value for digest in one.all} & {digest.value for digest in two.all})


def _other_model(was: str, now: str, first: str = "recorded", second: str = "found") -> RunError:
    width = max(len(first), len(second))
    return RunError(
        "the model is not the one that was recorded",
        facts=[f"{first:{width}} {was[:16]}", f"{second:{width}} {now[:16]}"],
    )


def save_bundle(
    folder: Path, session: Session, run: RecordedRun, feeds: Mapping[str, Array]
) -> None:
    """Write a bundle into a folder, which is made; `run.json`, which makes it one, comes last.

    Errors: ModelFileError, with what the system said
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").unlink(missing_ok=True)
        arrays = [np.ascontiguousarray(feeds[given.name]) for given in run.inputs]
        plain = {f"input{i}": array.reshape(-1).view(np.uint8) for i, array in enumerate(arrays)}
        np.savez(folder / "inputs.npz", allow_pickle=False, **plain)
    except OSError as error:
        raise ModelFileError(f"{folder}: a bundle cannot be written: {error}") from error
    save_lock(lock(session.placement), folder / PLACEMENT)
    write_atomic(folder / "run.json", [json.dumps(asdict(run), indent=1).encode(), b"\n"])


def load_bundle(folder: Path) -> tuple[RecordedRun, dict[str, Array]]:
    """Return a bundle's record and inputs; its placement is `folder / PLACEMENT`.

    Errors: ModelFileError, if a file is absent, damaged or of another version
    """
    try:
        run = _run_of(json.loads((folder / "run.json").read_text(encoding="utf-8")), folder)
        with np.load(folder / "inputs.npz", allow_pickle=False) as stored:
            feeds = {
                given.name: stored[f"input{i}"].view(numpy_dtype(given.dtype)).reshape(given.dims)
                for i, given in enumerate(run.inputs)
            }
        if not (folder / PLACEMENT).is_file():
            raise ModelFileError(f"{folder} is not a bundle: it has no {PLACEMENT}")
    except _DAMAGE as error:
        what = str(error) or type(error).__name__
        raise ModelFileError(f"{folder} is not a bundle: {what}") from error
    for given in run.inputs:
        if _sha256(feeds[given.name]) != given.sha256:
            raise ModelFileError(f"{folder}: input {given.name!r} is not the one that was recorded")
    return run, feeds


_DAMAGE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    RecursionError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors that broken JSON and broken archives may raise."""


def _run_of(raw: Mapping[str, Any], folder: Path) -> RecordedRun:
    """Return the record that a file holds, every field of it of its type."""
    if raw["version"] != VERSION:
        raise ModelFileError(
            f"{folder}: version {raw['version']!r} of bundles, this trireme reads {VERSION}",
            fix="record it anew: trireme replay MODEL DIR --record",
        )
    inputs = tuple(
        Given(str(one["name"]), str(one["dtype"]), tuple(map(int, one["dims"])), str(one["sha256"]))
        for one in raw["inputs"]
    )
    digests = tuple(
        Digest(*(str(one[field.name]) for field in fields(Digest))) for one in raw["digests"]
    )
    return RecordedRun(
        version=VERSION,
        graph_sha256=str(raw["graph_sha256"]),
        mode=choice("mode", raw["mode"], Mode),
        subgraphs=choice("subgraphs", raw["subgraphs"], Subgraphs),
        execution=choice("execution", raw["execution"], Execution),
        seed=int(raw["seed"]),
        plan=str(raw["plan"]),
        order=tuple(map(int, raw["order"])),
        digests=digests,
        inputs=inputs,
    )
