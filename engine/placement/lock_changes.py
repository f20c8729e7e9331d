"""How a placement of today differs from the one that is locked, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

from trireme.placement.lock import Lock, LockedNode


def differences(old: Lock, new: Lock, absent: Mapping[str, str] | None = None) -> list[str]:
    """Return, a line each, what is placed otherwise now than it was locked; none if nothing is.

    absent: why locked devices are not there
    """
    lines = [f"device {name} is not there: {why}" for name, why in (absent or {}).items()]
    gone = set(old.devices) - set(new.devices) - set(absent or {})
    lines += [f"device {name} was not asked for" for name in sorted(gone)]
    if old.objective != new.objective:
        lines.append(f"the objective is {new.objective}, it was {old.objective}")
    if old.shards != new.shards:
        then, now = (" and ".join(one) or "nothing" for one in (old.shards, new.shards))
        lines.append(f"shard now: {now}; it was: {then}")
    before, after = ({(n.body, n.name): n for n in one.nodes} for one in (old, new))
    gone_nodes = [n for n in old.nodes if (n.body, n.name) not in after]
    lines += [f"- {_where(n)} ({n.op}) on {n.device}" for n in gone_nodes]
    for node in new.nodes:
        was, name = before.get((node.body, node.name)), _where(node)
        if was is None:
            lines.append(f"+ {name} ({node.op}) on {node.device}: {node.why}")
        elif (was.op, was.device) != (node.op, node.device):
            op = f"{was.op} -> {node.op}" if was.op != node.op else node.op
            lines.append(f"~ {name} ({op}) {was.device} -> {node.device}: {node.why}")
    return lines + _regrouped(old, new, lines)


def _where(node: LockedNode) -> str:
    """Return the name of a node, behind the bodies that hold it."""
    return " / ".join((*node.body, node.name))


def _regrouped(old: Lock, new: Lock, found: list[str]) -> list[str]:
    """Return a line if nodes run where they did, but in other tasks."""
    if found:
        return []
    then, now = _tasks(old), _tasks(new)
    if then == now:
        return []
    return [f"the same devices, but {len(now)} tasks, there were {len(then)}"]


def _tasks(locked: Lock) -> set[frozenset[str]]:
    tasks: dict[tuple[tuple[str, ...], int], set[str]] = {}
    for node in locked.nodes:
        tasks.setdefault((node.body, node.task), set()).add(_where(node))
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
