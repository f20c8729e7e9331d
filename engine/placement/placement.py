"""The result of `place`: a device for every node, copy nodes at crossings, and the reasons.

After this stage a value lives in exactly one memory space; a tensor crosses a pair of spaces once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from trireme.backend.arena import MemoryUse
from trireme.backend.device import DeviceSpec, Resident
from trireme.backend.links import link_ends
from trireme.cost.estimate import Estimate, Source, sources_text
from trireme.cost.links import Links
from trireme.ir.graph import Graph, Node, node_names
from trireme.ops.repeats import bodies_of
from trireme.placement.candidate import Candidate
from trireme.placement.score import SAME, Gap, Score
from trireme.support.records import dataclass
from trireme.support.showing import WIDTH, Shown, clipped, clipped_name, wrapped
from trireme.support.units import bytes_text, time_text


@dataclass(frozen=True)
class Choice:
    """The device of one node, its estimates on all devices, and the reasons of refusals.

    resident: what it keeps in the memory of each device that can run it
    """

    device: str
    estimates: Mapping[str, Estimate]
    refusals: Mapping[str, str]
    notes: Mapping[str, str] = field(default_factory=dict)
    resident: Mapping[str, Resident] = field(default_factory=dict)


@dataclass(frozen=True)
class Tried:
    """A placement that was tried on this machine: its time, or why it was not measured.

    kept: it was the fastest, and is the one that runs
    """

    text: str
    kept: bool = False

    def __str__(self) -> str:
        return f"{self.text} <- kept" if self.kept else self.text


@dataclass(frozen=True)
class Shard:
    """A region that several devices share: in the form that `--shard` takes, and why it is so."""

    text: str
    why: str


@dataclass(frozen=True, repr=False)
class Placement(Shown):
    """A graph over devices.

    source: the graph as it was placed; its node ids are the keys of `choices`
    graph: the same nodes with the same ids, and the copy nodes (ids above all others)
    device_of: node id of `graph` -> device; a copy's is "from>to", two memory spaces
    memory_of: value id of `graph` -> the memory space it lives in (constants are everywhere)
    stage_of: node id of `source` -> the number of its task; tasks run in this order
    makespan_s: predicted seconds of a run in virtual time
    score: what the objective it was placed for says of it, and the bound
    candidates: the placements that were compared ("cpu only", "search", ...)
    unused: for each device that got no node, why
    shards: what was sharded over devices in `source`, in the order in which it was done
    no_shard: why nothing, or nothing more, was; "" where that was not asked
    fallback: why one device, or what a shard left, was kept although a mixture is faster; "" else
    near_ties: which other device alone may be as fast, as far as estimates tell; "" where none may
    proof: what the exact solver says of it; "" where it was not asked
    measured: the placements that were tried on this machine
    declined: how much lower the score of the best placement is, whose gain is uncertain
    price_pins: searches without the pins and returns `pins_cost`; None where nothing is pinned
    issue_s: least seconds of a task that follows only tasks of its own device, by device
    memory: what it needs of each memory space
    streamed_s: by node id, the seconds in which weights are fetched for it in every run
    bodies: the placement of one turn of each body of control flow, by body
    unplaced: why other bodies have none; the numpy references run these
    """

    source: Graph
    graph: Graph
    specs: Mapping[str, DeviceSpec]
    links: Links
    launch_s: Mapping[str, float]
    choices: Mapping[int, Choice]
    device_of: Mapping[int, str]
    memory_of: Mapping[int, str]
    stage_of: Mapping[int, int]
    makespan_s: float
    score: Score
    candidates: tuple[Candidate, ...]
    unused: Mapping[str, str]
    shards: tuple[Shard, ...] = ()
    no_shard: str = ""
    issue_s: Mapping[str, float] = field(default_factory=dict)
    declined: float = 0.0
    price_pins: Callable[[], float] | None = field(default=None, compare=False, repr=False)
    fallback: str = ""
    near_ties: str = ""
    proof: str = ""
    measured: tuple[Tried, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    streamed_s: Mapping[int, float] = field(default_factory=dict)
    bodies: Mapping[Graph, Placement] = field(default_factory=dict)
    unplaced: Mapping[Graph, str] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """The score above the lower bound, as a share: 0.0 is proven optimal."""
        return self.score.gap

    @property
    def pins_cost(self) -> float:
        """The score of the best placement with the pins, less that without.

        The first call searches without the pins, which takes as long as placing did.
        """
        return self.price_pins() if self.price_pins else 0.0

    @property
    def gaps(self) -> Gap:
        """The gap by what caused it; search and declined add up to `gap`."""
        bound = self.score.lower_bound
        if not bound:
            return Gap(0.0, 0.0, 0.0)
        declined = self.declined / bound
        return Gap(max(self.gap - declined, 0.0), declined, self.pins_cost / bound)

    @property
    def sources(self) -> dict[Source, float]:
        """The sources of the predicted seconds of nodes on the wall clock, as shares, the largest
        first; empty without such nodes.
        """
        seconds: dict[Source, float] = {}
        for choice in self.choices.values():
            if self.specs[choice.device].clock == "wall":
                own = choice.estimates[choice.device]
                seconds[own.source] = seconds.get(own.source, 0.0) + own.seconds
        total = sum(seconds.values())
        order = sorted(seconds, key=lambda source: -seconds[source])
        return {source: seconds[source] / total for source in order} if total else {}

    @property
    def tasks(self) -> int:
        """The number of tasks that run nodes, copies not counted."""
        return len(set(self.stage_of.values()))

    def nodes_on(self, device: str) -> list[Node]:
        """Return the nodes of the source graph that run on a device."""
        return [node for node in self.source.nodes if self.device_of[node.id] == device]

    def uses(self, device: str) -> bool:
        """Whether a node runs on a device, in the graph or in a body."""
        bodies = self.bodies.values()
        return device in self.device_of.values() or any(one.uses(device) for one in bodies)

    def copies(self) -> list[Node]:
        """Return the copy nodes, in graph order."""
        return [node for node in self.graph.nodes if node.op == "copy"]

    def to_json(self) -> dict[str, Any]:
        """Return the placement as plain data."""
        return {
            "makespan_s": self.makespan_s,
            "objective": self.score.objective,
            "score": self.score.value,
            "unit": self.score.unit,
            "lower_bound": self.score.lower_bound,
            "bound_from": self.score.bound_from,
            "gap": self.gap,
            "gaps": vars(self.gaps),
            "sources": self.sources,
            "candidates": {one.name: one.value for one in self.candidates},
            "unused": dict(self.unused),
            "shards": [vars(one) for one in self.shards],
            "no_shard": self.no_shard,
            "fallback": self.fallback,
            "near_ties": self.near_ties,
            "proof": self.proof,
            "measured": [vars(one) for one in self.measured],
            "memory": [vars(use) for use in self.memory],
            "nodes": [self._node_json(node) for node in self.source.nodes],
            "copies": [self._copy_json(node) for node in self.copies()],
        }

    def _node_json(self, node: Node) -> dict[str, Any]:
        choice = self.choices[node.id]
        return {
            "id": node.id,
            "op": node.op,
            "source": node.source,
            "device": choice.device,
            "task": self.stage_of[node.id],
            "estimates_s": {name: e.seconds for name, e in choice.estimates.items()},
            "estimate_source": {name: e.source for name, e in choice.estimates.items()},
            "refusals": dict(choice.refusals),
            "notes": dict(choice.notes),
            "bodies": {key: one.to_json() for key, one in self.bodies_of(node).items()},
        }

    def _copy_json(self, node: Node) -> dict[str, Any]:
        source, target = link_ends(self.device_of[node.id])
        nbytes = self.graph.type(node.outputs[0]).nbytes
        return {
            "id": node.id,
            "value": self.graph.values[node.used[0]].name,
            "from": source,
            "to": target,
            "bytes": nbytes,
            "estimate_s": self._copy_s(node),
        }

    def busy_s(self, device: str) -> float:
        """Return the predicted seconds of the nodes on a device, without launches and copies."""
        chosen = [self.choices[node.id] for node in self.nodes_on(device)]
        return sum(choice.estimates[device].seconds for choice in chosen)

    def copies_s(self) -> float:
        """Return the predicted seconds of all copies."""
        return sum(map(self._copy_s, self.copies()))

    def _copy_s(self, node: Node) -> float:
        nbytes = self.graph.type(node.outputs[0]).nbytes
        return self.links.seconds(nbytes, *link_ends(self.device_of[node.id]))

    def _notable(self) -> list[Candidate]:
        """Return the candidates worth a line: single devices, the best start, the answers."""
        others = [one for one in self.candidates if one.kind == "start"]
        best = min(others, key=lambda one: one.value, default=None)
        return [one for one in self.candidates if one.kind != "start" or one is best]

    def __str__(self) -> str:
        return self.summary()

    def summary(self, width: int | None = WIDTH) -> str:
        """Return one screen of lines of at most `width` columns; None: no line is cut."""
        lines = self._lines()
        for text in self._remarks():
            lines += wrapped(text, width)
        return "\n".join(clipped(line, width) for line in lines)

    def full_text(self) -> str:
        """Return the summary with nothing cut, and what each memory is needed for."""
        memory = [f"  memory of {use.rounded()}" for use in self.memory if use.limit and use.needed]
        remarks = [f"  {text}" for text in self._remarks()]
        return "\n".join([*self._lines(), *remarks, *memory])

    def _lines(self) -> list[str]:
        lines = [
            f"placement of {self.source.name!r}: {time_text(self.makespan_s)} a run predicted",
            f"  {self.score}",
            *([f"  {self.gaps}"] if self.gap or self.price_pins else []),
            *sources_text(self.sources),
            *self._device_lines(),
            *self._candidate_lines(),
        ]
        lines += self._body_lines()
        return lines + [f"  shard {one.text}: {one.why}" for one in self.shards[:_MOST_LINES]]

    def bodies_of(self, node: Node) -> dict[str, Placement]:
        """Return the placements of a node's bodies, by attribute; not of those that have none."""
        bodies = bodies_of(node)
        return {key: self.bodies[body] for key, body in bodies.items() if body in self.bodies}

    def _body_lines(self) -> list[str]:
        """Return a line for each body: where its nodes run, or why numpy runs it."""
        lines, names = [], node_names(self.source)
        for node in self.source.nodes:
            for key, body in bodies_of(node).items():
                what = f"  {key} of {node.op} {clipped_name(names[node.id], 30)!r}: "
                if body in self.unplaced:
                    lines.append(f"{what}numpy runs it: {self.unplaced[body]}")
                elif body in self.bodies:
                    lines.append(what + self.bodies[body].as_body(key))
        rest = [f"  and {len(lines) - _MOST_LINES} bodies more"] if lines[_MOST_LINES:] else []
        return lines[:_MOST_LINES] + rest

    def as_body(self, key: str) -> str:
        """Return its time, the nodes of each device and what drives its turns, for a body's line.

        key: the attribute that holds the body
        """
        counts = [(len(self.nodes_on(name)), name) for name in self.specs]
        nodes = ", ".join(f"{n} nodes on {name}" for n, name in counts if n)
        is_driven = key == "body" and self.divided
        driver = f"; the host drives its turns: {self.divided}" if is_driven else ""
        return f"{time_text(self.makespan_s)} a turn, {nodes or 'no nodes'}{driver}"

    @property
    def divided(self) -> str:
        """Why its nodes are no single task that a device compiles whole; "" where they are."""
        for node in self.source.nodes:
            choice = self.choices[node.id]
            if note := choice.notes.get(choice.device):
                return f"{node.label}: {note}"
        used = [(len(self.nodes_on(name)), name) for name in self.specs]
        most = max(used, default=(0, ""))[1]
        other = next((node for node in self.source.nodes if self.device_of[node.id] != most), None)
        if other is not None:
            return f"{other.label} runs on {self.device_of[other.id]}, other nodes on {most}"
        if self.copies():
            return f"values are copied to and from {most}"
        return f"they are {self.tasks} tasks" if self.tasks > 1 else ""

    @property
    def used_by_bodies(self) -> set[str]:
        """The devices that run nodes of bodies, of bodies inside them too."""
        used: set[str] = set()
        for one in self.bodies.values():
            used |= {name for name in one.specs if one.nodes_on(name)} | one.used_by_bodies
        return used

    def _remarks(self) -> list[str]:
        """Return what decided beside the search: proof, shards, single devices, measurements."""
        texts = (self.proof, self.no_shard, self.fallback, self.near_ties, *map(str, self.measured))
        return [text for text in texts if text]

    def _device_lines(self) -> list[str]:
        """Return the table of devices: nodes, tasks, predicted seconds, share and memory."""
        uses = {use.memory: use for use in self.memory if use.limit and use.needed}
        busy = {name: self.busy_s(name) for name in self.specs}
        copies, copies_s = self.copies(), self.copies_s()
        total = (sum(busy.values()) + copies_s) or 1.0
        lines = [f"  {'device':<10}{'nodes':>6}{'tasks':>6}{'time':>11}{'share':>7}  memory"]
        for name, spec in self.specs.items():
            if name in self.unused and name in self.used_by_bodies:
                lines.append(f"  {name:<10}runs bodies of control flow, and no other node")
                continue
            if name in self.unused:
                lines.append(f"  {name:<10}unused: {self.unused[name]}")
                continue
            tasks = len({self.stage_of[node.id] for node in self.nodes_on(name)})
            lines.append(
                f"  {name:<10}{len(self.nodes_on(name)):>6}{tasks:>6}{time_text(busy[name]):>11}"
                f"{busy[name] / total:>7.0%}  {_memory_text(uses.get(spec.memory))}".rstrip()
            )
        if copies:
            lines.append(
                f"  {'copies':<10}{len(copies):>6}{'':>6}{time_text(copies_s):>11}"
                f"{copies_s / total:>7.0%}"
            )
        return lines

    def _candidate_lines(self) -> list[str]:
        """Return the candidates that were compared, the best first, the chosen one marked."""
        rows = sorted(((one.value, one.name) for one in self._notable()), key=lambda row: row[0])
        value = self.score.value
        chosen = next((name for v, name in rows if abs(v - value) <= SAME * value), "this one")
        rows += [(value, chosen)] if chosen == "this one" else []
        kept = [row for row in rows[:_MOST_LINES] if row[1] != chosen]
        shown = sorted(kept + [row for row in rows if row[1] == chosen], key=lambda row: row[0])
        width = max((len(name) for _, name in shown), default=0)
        lines = [
            f"  {'*' if name == chosen else ' '} {name:<{width}}  {self.score.text(v)}"
            for v, name in shown
        ]
        return ["  candidates, the chosen one marked:", *lines] if len(lines) > 1 else []


_MOST_LINES = 3
"""The most candidates, or shards, of a summary."""


def _memory_text(use: MemoryUse | None) -> str:
    """Return how much of its memory a device needs; "" where it has no limit."""
    if use is None:
        return ""
    streamed = f", {bytes_text(use.streamed)} streamed" if use.streamed else ""
    return f"{bytes_text(use.needed)} of {bytes_text(use.limit)}{streamed}"


def largest_values(graph: Graph, nodes: Iterable[Node], most: int = 3) -> list[str]:
    """Return the names and sizes of the largest values that some nodes read or make."""
    used = {value for node in nodes for value in (*node.used, *node.outputs)}
    found = sorted(used, key=lambda v: (-graph.type(v).nbytes, v))[:most]
    kind = {True: "weights", False: "value"}
    return [
        f"{kind[graph.values[v].is_constant]} '{graph.values[v].first_name}' {graph.type(v)}, "
        f"{graph.type(v).nbytes} bytes"
        for v in found
    ]
