"""Run a switched graph for one choice: only the forms of nodes that the choice holds.

The graph is cut where a switch chooses and where several nodes read a value. Each piece between is
compiled when a choice first needs it. What a choice shares with the one that was kept is not run
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from trireme.backend.device import Device
from trireme.backend.registry import DEFAULT_DEVICE, open_devices
from trireme.ir.graph import Graph
from trireme.quantiser.samples import Feeds
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array

KEPT_BYTES = 256 << 20
"""The most memory for values of the choice that others share."""


class _Select(NamedTuple):
    """A value that is one of two others, by the switch of a unit."""

    unit: int
    on: int
    off: int


@dataclass(frozen=True)
class _Piece:
    """The nodes that make one value of values at cuts, compiled."""

    session: Session
    inputs: tuple[int, ...]


class PieceStep(NamedTuple):
    """One piece to run for a choice.

    value: what it makes
    inputs: what it reads, no switch between
    key: stands for the value with all the forms of nodes that make it
    """

    value: int
    inputs: tuple[int, ...]
    key: int


class SwitchedRuns:
    """Runs choices of one switched graph.

    switches: the graph's inputs that are switches, by unit
    """

    def __init__(self, graph: Graph, switches: Mapping[int, str], threads: int | None) -> None:
        self.graph = graph
        units = {name: unit for unit, name in switches.items()}
        switch_of = {
            value.id: units[value.name] for value in graph.input_values() if value.name in units
        }
        self._selects = {
            node.outputs[0]: _Select(switch_of[node.used[0]], *node.used[1:])
            for node in graph.nodes
            if node.op == "where" and node.used[0] in switch_of
        }
        self._cuts = self._places_to_cut()
        self._order = {out: place for place, node in enumerate(graph.nodes) for out in node.outputs}
        known = ((out, graph.values[out].data) for out in graph.outputs)
        self._constants = {out: data for out, data in known if data is not None}
        self._pieces: dict[int, _Piece] = {}
        self._keys: dict[tuple[int, ...], int] = {}
        self._kept: dict[int, dict[int, Array]] = {}
        opened, _ = open_devices((DEFAULT_DEVICE,), {}, threads)
        self._device: Device = opened[DEFAULT_DEVICE]

    def close(self) -> None:
        """Close what was compiled."""
        for piece in self._pieces.values():
            piece.session.close()
        self._device.close()

    def steps(self, taken: Collection[int]) -> list[PieceStep]:
        """Return the pieces of a choice, in an order in which they can run."""
        needed: dict[int, tuple[int, ...]] = {}
        queue = [self._chosen(value, taken) for value in self.graph.outputs]
        while queue:
            value = queue.pop()
            if value in needed or value not in self._order:
                continue
            inputs = self._piece(value).inputs
            needed[value] = tuple(self._chosen(one, taken) for one in inputs)
            queue += needed[value]
        found: list[PieceStep] = []
        keys: dict[int, int] = {}
        for value in sorted(needed, key=lambda one: self._order[one]):
            whole = (value, *(keys.get(one, -1) for one in needed[value]))
            keys[value] = self._keys.setdefault(whole, len(self._keys))
            found.append(PieceStep(value, needed[value], keys[value]))
        return found

    def run(self, feeds: Feeds, taken: Collection[int], sample: int | None = None) -> list[Array]:
        """Return the outputs of a choice, in the graph's order.

        sample: which of the samples of `keep` the feeds are; None for others
        """
        kept = {} if sample is None else self._kept.get(sample, {})
        made = self._values(feeds, self.steps(taken), kept)
        return [made[self._chosen(out, taken)] for out in self.graph.outputs]

    def keep(self, samples: Collection[Feeds], taken: Collection[int]) -> None:
        """Keep the values of a choice, as far as memory goes, for choices that share them."""
        steps, before, room = self.steps(taken), self._kept, KEPT_BYTES
        self._kept = {}
        for sample, feeds in enumerate(samples):
            if room <= 0:
                return
            made = self._values(feeds, steps, before.get(sample, {}))
            self._kept[sample] = kept = {}
            for step in steps:
                room -= made[step.value].nbytes
                if room > 0:
                    kept[step.key] = made[step.value]

    def _values(
        self, feeds: Feeds, steps: Collection[PieceStep], kept: Mapping[int, Array]
    ) -> dict[int, Array]:
        made = {**self._constants}
        made |= {one.id: feeds[one.name] for one in self.graph.input_values() if one.name in feeds}
        for step in steps:
            made[step.value] = kept[step.key] if step.key in kept else self._run(step, made)
        return made

    def _run(self, step: PieceStep, made: Mapping[int, Array]) -> Array:
        piece, values = self._pieces[step.value], self.graph.values
        pairs = zip(piece.inputs, step.inputs, strict=True)
        feeds = {values[place].name: made[value] for place, value in pairs}
        (result,) = piece.session.run(feeds).values()
        return result

    def _chosen(self, value: int, taken: Collection[int]) -> int:
        """Return the value that the switches of a choice let through."""
        while value in self._selects:
            select = self._selects[value]
            value = select.on if select.unit in taken else select.off
        return value

    def _places_to_cut(self) -> set[int]:
        """Return the values between pieces."""
        readers = Counter(value for node in self.graph.nodes for value in node.used)
        several = {value for value, count in readers.items() if count > 1}
        forms = {value for one in self._selects.values() for value in (one.on, one.off)}
        return {*self.graph.inputs, *self.graph.outputs, *several, *forms, *self._selects}

    def _piece(self, value: int) -> _Piece:
        """Return what makes a value of values at cuts."""
        if value not in self._pieces:
            part = self._part(value)
            session = Session(part, devices=[self._device])
            self._pieces[value] = _Piece(session, part.inputs)
        return self._pieces[value]

    def _part(self, value: int) -> Graph:
        """Return the graph between a value and the cuts before it."""
        values, inside, inputs = self.graph.values, set[int](), dict[int, None]()
        queue = [value]
        while queue:
            made = queue.pop()
            node = self.graph.producer(made)
            if made != value and (made in self._cuts or node is None):
                inputs[made] = None
            elif node is not None and node.id not in inside:
                inside.add(node.id)
                queue += [one for one in node.used if not values[one].is_constant]
        nodes = tuple(replace(node, after=()) for node in self.graph.nodes if node.id in inside)
        known = {value, *inputs, *(one for node in nodes for one in (*node.used, *node.outputs))}
        return replace(
            self.graph,
            inputs=tuple(sorted(inputs)),
            outputs=(value,),
            nodes=nodes,
            values={one: kind for one, kind in values.items() if one in known},
        )
