"""A placement written down: which node runs where and why, to be read, kept and compared.

The file is TOML, a line a node, with the options that the placement was made with. `differences`
says in sentences how a placement of today differs from the one locked; `Lock.kept` gives a Session
the locked devices for a graph, or refuses.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from trireme.backend.device import HOST, Device
from trireme.cost.model import CostModel
from trireme.ir.graph import Graph, node_names
from trireme.placement.explain import explain
from trireme.placement.objective import Objective
from trireme.placement.place import HeldNodes, place
from trireme.placement.placement import Placement, Splitting
from trireme.placement.shards.choose import Splits, place_with, split_as
from trireme.placement.uncertainty import MultiDevice
from trireme.support.atomic import write_atomic
from trireme.support.errors import ModelFileError, PlacementError

VERSION = 2


@dataclass(frozen=True)
class LockedNode:
    """One line: the node's name (its first output's), op, device and task, and why it is there."""

    name: str
    op: str
    device: str
    task: int
    us: float
    why: str


@dataclass(frozen=True)
class LockedOptions:
    """The options that a placement was made with; whoever holds the lock uses them again.

    devices: the names asked for, in order; none where the lock is of devices opened by hand
    batch, threads: None where they were not given
    pins: a node's name, FIRST..LAST, `*` or `op:softmax` -> device
    soc, figures: the described machine, and those of its figures that were changed; "" where the
        placement is of this machine
    calibration: digest of the measured curves that priced the placement; "" where there were none
    """

    devices: tuple[str, ...] = ()
    batch: int | None = None
    threads: int | None = None
    pins: Mapping[str, str] = field(default_factory=dict)
    soc: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    calibration: str = ""


@dataclass(frozen=True)
class Lock:
    """A locked placement; devices: name -> description of the very device; splits: what several
    devices share, in the form that `--split` takes; measured: whether it was chosen by trying it,
    so that placing the model anew may well say otherwise; options: what it was made with.
    """

    model: str
    trireme: str
    objective: str
    predicted: float
    lower_bound: float
    unit: str
    devices: Mapping[str, str]
    nodes: tuple[LockedNode, ...]
    splits: tuple[str, ...] = ()
    measured: bool = False
    options: LockedOptions = LockedOptions()

    def kept(self, graph: Graph) -> HeldNodes:
        """Return where the nodes of a graph are to be.

        Errors: PlacementError, if its nodes are not those that were locked
        """
        locked = {node.name: node for node in self.nodes}
        names = node_names(graph)
        facts = [
            f"{names[n.id]}: {n.op} now, "
            + (f"{locked[names[n.id]].op} in the lock" if names[n.id] in locked else "not there")
            for n in graph.nodes
            if names[n.id] not in locked or locked[names[n.id]].op != n.op
        ]
        gone = sorted(set(locked) - set(names.values()))
        facts += [f"{name}: {locked[name].op} in the lock, not in the graph" for name in gone]
        if facts:
            raise PlacementError(
                f"the locked placement is of another graph: {len(facts)} nodes differ",
                facts=facts[:8],
                fix="place the model anew: trireme place MODEL --lock FILE",
            )
        rows = {node.id: locked[names[node.id]] for node in graph.nodes}
        return HeldNodes(
            {node: row.device for node, row in rows.items()},
            {node: row.task for node, row in rows.items()},
        )


FixedPlacement = Placement | Lock | str | os.PathLike[str]
"""Ways to say where nodes are to be: a placement, a lock, or the file that holds one."""


@dataclass(frozen=True)
class MadeWith:
    """What a session is made with: its caller's options, else those of a held lock, else defaults.

    held: the placement or the lock that is held, read
    """

    held: Placement | Lock | None
    devices: Sequence[str | Device]
    threads: int | None
    batch: int | None
    objective: Objective


def made_with(
    placement: FixedPlacement | None,
    devices: Sequence[str | Device] | None,
    threads: int | None,
    batch: int | None,
    objective: Objective | None,
) -> MadeWith:
    """Return what a session is made with, given its options of these names.

    Errors: PlacementError, if the lock is of a described machine, where nothing can run;
    ModelFileError, as `load_lock`
    """
    held = read_held(placement)
    of_lock, goal = _runnable(held) if isinstance(held, Lock) else (_DEFAULTS, "makespan")
    return MadeWith(
        held,
        of_lock.devices if devices is None else devices,
        of_lock.threads if threads is None else threads,
        of_lock.batch if batch is None else batch,
        objective or goal,
    )


_DEFAULTS = LockedOptions(devices=("cpu",))


def _runnable(held: Lock) -> tuple[LockedOptions, Objective]:
    """Return the options and the objective of a lock of this machine, with devices to open."""
    if held.options.soc:
        raise PlacementError(
            f"the locked placement is of the described machine {held.options.soc!r}, which runs "
            "nothing",
            fix="lock a placement on this machine's devices: trireme place MODEL --lock FILE",
        )
    options = replace(held.options, devices=tuple(devices_of(held)))
    return options, cast(Objective, held.objective)


def devices_of(locked: Lock) -> list[str]:
    """Return the names that a lock's devices are opened by; not the host's if it had nothing but
    states, for which it is there by itself."""
    if locked.options.devices:
        return list(locked.options.devices)
    ops = {node.op for node in locked.nodes if node.device == HOST}
    keeper = bool(ops) and ops <= {"variable", "assign"}
    return [name for name in locked.devices if not (keeper and name == HOST)]


def read_held(held: FixedPlacement | None) -> Placement | Lock | None:
    """Return what is held; the lock, if it is the file of one.

    Errors: ModelFileError, as `load_lock`
    """
    if held is None or isinstance(held, Placement | Lock):
        return held
    return load_lock(held)


def place_as(
    graph: Graph,
    costs: CostModel,
    objective: Objective = "makespan",
    held: FixedPlacement | None = None,
    splits: Splits = "off",
    multi_device: MultiDevice = "any",
) -> Placement:
    """Return the placement of a graph: searched for, or as it is held, its splits included.

    splits, multi_device: what to split, and when to take several devices, where nothing is held
    Errors: those of `place` and `load_lock`; PlacementError, if what is held is of another graph
    """
    if held is None:
        return place_with(graph, costs, objective, splits=splits, multi_device=multi_device)
    if isinstance(held, Placement):
        if {node.id for node in graph.nodes} != {node.id for node in held.source.nodes}:
            graph = split_as(graph, [one.text for one in held.splits], costs.devices)
        return replace(place(graph, costs, objective, keep=held), splits=held.splits)
    locked = cast(Lock, read_held(held))
    graph = split_as(graph, locked.splits, costs.devices)
    placed = place(graph, costs, objective, keep=locked.kept(graph))
    done = tuple(Splitting(text, "it is in the lock") for text in locked.splits)
    return replace(placed, splits=done)


def lock(placement: Placement, version: str = "", options: LockedOptions | None = None) -> Lock:
    """Return what there is to lock of a placement; version: of the program that writes it."""
    names = node_names(placement.source)
    score = placement.score
    nodes = []
    for node, (chosen, *_) in explain(placement).nodes:
        us = (chosen.estimate_s or 0.0) * 1e6
        task = placement.stage_of[node.id]
        nodes.append(LockedNode(names[node.id], node.op, chosen.device, task, us, chosen.why))
    devices = {name: spec.description for name, spec in placement.specs.items()}
    return Lock(
        placement.source.name,
        version,
        score.objective,
        score.value,
        score.lower_bound,
        score.unit,
        devices,
        tuple(nodes),
        tuple(one.text for one in placement.splits),
        any(one.kept for one in placement.measured),
        options or LockedOptions(),
    )


def lock_text(locked: Lock) -> str:
    """Return the file's text."""
    lines = [
        "# A placement of trireme: which node runs where, and why.",
        "# `trireme place MODEL --check FILE` says what would change it.",
        f"version = {VERSION}",
        f"model = {_quoted(locked.model)}",
        f"trireme = {_quoted(locked.trireme)}",
        f"objective = {_quoted(locked.objective)}",
        f"predicted = {locked.predicted!r}",
        f"lower_bound = {locked.lower_bound!r}",
        f"unit = {_quoted(locked.unit)}",
        f"splits = [{', '.join(map(_quoted, locked.splits))}]",
        f"measured = {str(locked.measured).lower()}",
        "nodes = [",
    ]
    lines += [
        f"  {{name = {_quoted(n.name)}, op = {_quoted(n.op)}, device = {_quoted(n.device)}, "
        f"task = {n.task}, us = {n.us:.3f}, why = {_quoted(n.why)}}},"
        for n in locked.nodes
    ]
    lines += ["]", "", *_option_lines(locked.options), "", "[devices]"]
    lines += [f"{_quoted(name)} = {_quoted(text)}" for name, text in locked.devices.items()]
    return "\n".join(lines) + "\n"


def _option_lines(options: LockedOptions) -> list[str]:
    """Return the table of options; what was not given is left out."""
    pins = ", ".join(f"{_quoted(name)} = {_quoted(to)}" for name, to in options.pins.items())
    figures = ", ".join(f"{_quoted(name)} = {value!r}" for name, value in options.figures.items())
    given = {
        "devices": f"[{', '.join(map(_quoted, options.devices))}]",
        "batch": "" if options.batch is None else str(options.batch),
        "threads": "" if options.threads is None else str(options.threads),
        "pins": f"{{{pins}}}" if pins else "",
        "soc": _quoted(options.soc) if options.soc else "",
        "figures": f"{{{figures}}}" if figures else "",
        "calibration": _quoted(options.calibration) if options.calibration else "",
    }
    return ["[options]", *(f"{name} = {text}" for name, text in given.items() if text)]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def save_lock(locked: Lock, path: Path) -> None:
    """Write the lock, whole or not at all.

    Errors: ModelFileError, if it cannot be written
    """
    try:
        write_atomic(path, [lock_text(locked).encode()])
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error.summary}") from error


def load_lock(file: str | os.PathLike[str]) -> Lock:
    """Read a lock.

    Errors: ModelFileError, if it cannot be read, is damaged or of a version not known here
    """
    path = Path(file)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: not a placement: {error}") from error
    if data.get("version") != VERSION:
        raise ModelFileError(
            f"{path}: version {data.get('version')!r} of placements, this trireme reads {VERSION}",
            fix="place the model anew: trireme place MODEL --lock FILE",
        )
    try:
        nodes = tuple(_node(row) for row in data["nodes"])
        devices = {str(name): str(text) for name, text in data["devices"].items()}
        return Lock(
            str(data["model"]),
            str(data["trireme"]),
            str(data["objective"]),
            float(data["predicted"]),
            float(data["lower_bound"]),
            str(data["unit"]),
            devices,
            nodes,
            tuple(str(text) for text in data.get("splits", ())),
            bool(data.get("measured", False)),
            _options(data["options"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"{path}: a placement without its {error}") from error


def _options(row: Mapping[str, Any]) -> LockedOptions:
    batch, threads = row.get("batch"), row.get("threads")
    return LockedOptions(
        devices=tuple(str(name) for name in row["devices"]),
        batch=None if batch is None else int(batch),
        threads=None if threads is None else int(threads),
        pins={str(name): str(device) for name, device in row.get("pins", {}).items()},
        soc=str(row.get("soc", "")),
        figures={str(name): float(value) for name, value in row.get("figures", {}).items()},
        calibration=str(row.get("calibration", "")),
    )


def _node(row: Mapping[str, Any]) -> LockedNode:
    return LockedNode(
        str(row["name"]),
        str(row["op"]),
        str(row["device"]),
        int(row["task"]),
        float(row["us"]),
        str(row["why"]),
    )


def differences(old: Lock, new: Lock, absent: Mapping[str, str] | None = None) -> list[str]:
    """Return, a line each, what is placed otherwise now than it was locked; none if nothing is.

    absent: why locked devices are not there
    """
    lines = [f"device {name} is not there: {why}" for name, why in (absent or {}).items()]
    gone = set(old.devices) - set(new.devices) - set(absent or {})
    lines += [f"device {name} was not asked for" for name in sorted(gone)]
    if old.objective != new.objective:
        lines.append(f"the objective is {new.objective}, it was {old.objective}")
    if old.splits != new.splits:
        then, now = (" and ".join(one) or "nothing" for one in (old.splits, new.splits))
        lines.append(f"split now: {now}; it was: {then}")
    before, after = {n.name: n for n in old.nodes}, {n.name: n for n in new.nodes}
    lines += [f"- {n.name} ({n.op}) on {n.device}" for n in old.nodes if n.name not in after]
    for node in new.nodes:
        was = before.get(node.name)
        if was is None:
            lines.append(f"+ {node.name} ({node.op}) on {node.device}: {node.why}")
        elif (was.op, was.device) != (node.op, node.device):
            op = f"{was.op} -> {node.op}" if was.op != node.op else node.op
            lines.append(f"~ {node.name} ({op}) {was.device} -> {node.device}: {node.why}")
    return lines + _regrouped(old, new, lines)


def _regrouped(old: Lock, new: Lock, found: list[str]) -> list[str]:
    """Return a line if nodes run where they did, but in other tasks."""
    if found:
        return []
    then, now = _tasks(old), _tasks(new)
    if then == now:
        return []
    return [f"the same devices, but {len(now)} tasks, there were {len(then)}"]


def _tasks(locked: Lock) -> set[frozenset[str]]:
    tasks: dict[int, set[str]] = {}
    for node in locked.nodes:
        tasks.setdefault(node.task, set()).add(node.name)
    return {frozenset(names) for names in tasks.values()}


def remarks(old: Lock, new: Lock) -> list[str]:
    """Return what is otherwise but changes no placement: devices' descriptions, the prediction."""
    lines = [
        f"{name} is now {text!r}, it was {old.devices[name]!r}"
        for name, text in new.devices.items()
        if old.devices.get(name, text) != text
    ]
    if old.model != new.model:
        lines.append(f"the model is called {new.model!r}, it was {old.model!r}")
    lines += [f"{name} is new here" for name in new.devices if name not in old.devices]
    if old.trireme != new.trireme:
        lines.append(f"trireme is {new.trireme}, it was {old.trireme}")
    if old.options.calibration != new.options.calibration:
        lines.append("the calibration is another one than when it was locked")
    if old.predicted and abs(new.predicted / old.predicted - 1) > 0.01:
        change = new.predicted / old.predicted - 1
        lines.append(f"the prediction is {change:+.0%}: {new.predicted:.4g} {new.unit}")
    return lines
