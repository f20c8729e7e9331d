"""The graphs that a lift builds: scopes that know the values of tokens at a place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from trireme.ir.builder import GraphBuilder
from trireme.ir.op import get_op
from trireme.runtime.dataflow import calls
from trireme.runtime.dataflow.frames import FrameReader
from trireme.runtime.dataflow.graph import DataflowGraph, Operand, Port, Primitive
from trireme.runtime.dataflow.places import Place, Places, irreducible
from trireme.support.errors import GraphError, InternalError


class Lifting:
    """What all scopes of a lift share.

    branch: adds the `if` that makes a merge; loop: adds the loop that makes an exit
    lifted: the ops that are in a graph by now
    """

    def __init__(
        self, graph: DataflowGraph, places: Places, branch: AddControl, loop: AddControl
    ) -> None:
        self.graph, self.primitives, self.places = graph, graph.primitives, places
        self.branch, self.loop = branch, loop
        self.effects = [one for one in self.primitives if has_effect(one)]
        self.lifted: set[int] = set()
        self.frames = FrameReader(graph, places)

    def check_effects(self) -> None:
        """Raise GraphError if an op with an effect is in no graph."""
        for one in self.effects:
            if one.id not in self.lifted:
                raise irreducible(one, "nothing that it decides leaves its branch or loop")


class LiftScope:
    """A graph that is being built, or a part of one: the values of tokens at a place.

    home: where ops with an effect belong to it; known: the values of tokens
    inputs: what a branch reads from around, in order
    ends: the outputs of a branch
    """

    ends: Sequence[int] = ()

    def __init__(
        self,
        lifting: Lifting,
        builder: GraphBuilder,
        place: Place,
        around: LiftScope | None = None,
        home: Place | None = None,
    ) -> None:
        self.lifting, self.builder, self.place, self.around = lifting, builder, place, around
        self.home = place if home is None else home
        self.known: dict[Port, int] = {}
        self.inputs: list[Port] = []
        self._constants: dict[int, int] = {}

    def named(self, operand: Operand, name: str) -> int:
        """Return an output of the graph; `name` is its name where its maker has none."""
        value = self.output(operand)
        old = self.builder.values[value]
        if name and value not in self.builder.inputs and old.data is None:
            self.builder.values[value] = replace(old, name=name)
        return value

    def output(self, operand: Operand) -> int:
        """Return a value that must be there."""
        found = self.value(operand)
        if found is None:
            raise GraphError(f"{self.lifting.graph.name}: an output is left out")
        return found

    def value(self, operand: Operand) -> int | None:
        """Return the value of an operand in the graph; None where it is left out."""
        if operand is None:
            return None
        if not isinstance(operand, Port):
            if id(operand) not in self._constants:
                self._constants[id(operand)] = self.builder.constant("", operand)
            return self._constants[id(operand)]
        for port in self._unknown_before(operand):
            self.known[port] = self._made(port)
        return self.known[operand]

    def _unknown_before(self, port: Port) -> Sequence[Port]:
        """Return the tokens of ops before a token that have no value yet, and the token, in order.

        Long chains of ops are walked here, so that they need no deep recursion.
        """
        order: list[Port] = []
        work: list[tuple[Port, bool]] = [(port, False)]
        begun: set[int] = set()
        while work:
            at, is_ready = work.pop()
            if at in self.known:
                continue
            if is_ready:
                order.append(at)
                continue
            maker = self.lifting.primitives[at.primitive]
            if at.primitive in begun and maker.kind == "op":
                continue
            begun.add(at.primitive)
            work.append((at, True))
            if maker.kind == "op" and self._holds(at):
                work += [(one, False) for one in reversed(_ports(maker)) if one not in self.known]
        return order

    def _holds(self, port: Port) -> bool:
        place = self.lifting.places.of[port]
        return self.place.holds(place)

    def _made(self, port: Port) -> int:
        """Make the value of a token; all values that a plain op reads are known."""
        if port in self.known:
            return self.known[port]
        maker = self.lifting.primitives[port.primitive]
        if not self._holds(port):
            return self.captured(port)
        if maker.kind == "op":
            self._op(maker)
        elif maker.kind == "switch" or (maker.kind == "call" and maker.function is calls.same):
            return self.output(maker.operands[0])
        elif maker.kind == "merge" and maker.id in self.lifting.places.joins:
            self.lifting.branch(self, maker)
        elif maker.kind == "exit":
            self.lifting.loop(self, maker)
        elif maker.kind == "call" and isinstance(maker.function, calls.StackedRows):
            self.lifting.loop(self, self._exit_of(maker))
        if port not in self.known:
            raise irreducible(maker, "its token does not leave where it is made")
        return self.known[port]

    def _op(self, maker: Primitive) -> None:
        if maker.node is None or maker.graph is None:
            raise InternalError(f"{maker} has no node")
        for control in maker.controls:
            if has_effect(self.lifting.primitives[control.primitive]) and self._holds(control):
                self.value(control)
        outs = [maker.graph.values[value] for value in maker.node.outputs]
        made = self.builder.add_node(
            maker.node.op,
            [self.value(one) for one in maker.operands],
            maker.node.attrs,
            outputs=len(outs),
            names=[value.name for value in outs],
            quants=[value.quant for value in outs],
            source=maker.node.source,
            pin=maker.node.pin,
        )
        self.lifting.lifted.add(maker.id)
        for k, value in enumerate(made):
            self.known[Port(maker.id, k)] = value

    def captured(self, port: Port) -> int:
        """Return an input for a token from around this branch."""
        if self.around is None or port in self.inputs:
            raise InternalError(f"%{port.primitive} is read out of place")
        outer = self.around.output(port)
        value = self.around.builder.values[outer]
        self.inputs.append(port)
        return self.builder.input(value.name, value.type)

    def finish(self) -> None:
        """Add the ops with an effect of this very place that nothing read."""
        for one in self.lifting.effects:
            if self.lifting.places.of[Port(one.id)] == self.home:
                self.value(Port(one.id))

    def _exit_of(self, stack: Primitive) -> Primitive:
        (port, *_) = stack.waits
        return self.lifting.primitives[port.primitive]

    def add(
        self,
        op: str,
        operands: Sequence[int | None],
        attrs: Mapping[str, object],
        makers: Sequence[Primitive | None],
    ) -> None:
        """Add a control node; `makers` send its outputs in order."""
        nodes = (one.node for one in makers if one is not None)
        node = next((one for one in nodes if one is not None), None)
        values = [None if one is None else one.value for one in makers]
        made = self.builder.add_node(
            op,
            operands,
            attrs,
            outputs=len(makers),
            names=["" if value is None else value.name for value in values],
            quants=[None if value is None else value.quant for value in values],
            source="" if node is None else node.source,
            pin=None if node is None else node.pin,
        )
        for one, output in zip(makers, made, strict=True):
            if one is not None:
                self.known[Port(one.id)] = output


AddControl = Callable[[LiftScope, Primitive], None]


def has_effect(primitive: Primitive) -> bool:
    """Whether a primitive is an op with an effect."""
    return primitive.node is not None and bool(get_op(primitive.node.op).effect)


def condition_of(primitives: Sequence[Primitive], operand: Operand) -> Operand:
    """Return what a condition is before it is made a scalar."""
    if not isinstance(operand, Port):
        return operand
    maker = primitives[operand.primitive]
    return maker.operands[0] if maker.function is calls.is_true else operand


def _ports(primitive: Primitive) -> list[Port]:
    return [one for one in primitive.operands if isinstance(one, Port)]
