"""A device that exists as figures alone: it can be placed on and priced, not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from trireme.backend.device import Buffer, Device, DeviceSpec, Executable
from trireme.cost.work import work_of
from trireme.ir.graph import Graph, Node
from trireme.quantiser.scheme import scheme_of_product
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError, DeviceError


@dataclass(frozen=True)
class Support:
    """The ops and dtypes that a described device runs.

    ops: the ops it has, all when empty; except_ops: those it has not
    dtypes: of the inputs and outputs of a node, all when empty
    schemes: of quantisation, whose products it runs, all when empty
    max_rank: dimensions of a tensor, 0 when unlimited
    max_elements: by op, the most elements of its output
    one_subgraph: the vendor's compiler maps one subgraph: what comes after a node that the device
        does not run is not mapped either
    """

    ops: frozenset[str] = frozenset()
    except_ops: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    schemes: frozenset[str] = frozenset()
    max_rank: int = 0
    max_elements: Mapping[str, int] = field(default_factory=dict)
    one_subgraph: bool = False

    def refusal(self, graph: Graph, node: Node) -> str | None:
        """Return why the device does not run a node by itself, or None."""
        if node.op in self.except_ops or (self.ops and node.op not in self.ops):
            return f"its description has no {node.op}"
        for value in (*node.used, *node.outputs):
            type = graph.type(value)
            if value in node.outputs or not graph.values[value].is_constant:
                if self.dtypes and type.dtype not in self.dtypes:
                    return f"its description has no {type.dtype}"
                if self.max_rank and len(type.shape) > self.max_rank:
                    return f"its description has tensors of rank {self.max_rank} at most"
        scheme = scheme_of_product(graph, node) if self.schemes else None
        if scheme is not None and scheme not in self.schemes:
            return f"its description has no scheme {scheme}"
        most, made = self.max_elements.get(node.op), graph.type(node.outputs[0])
        if most is not None and made.is_static and made.elements > most:
            return f"its description has {node.op} of {most} elements at most, not {made.elements}"
        return None

    def unmapped(self, graph: Graph) -> dict[int, str]:
        """Return, by id, the nodes that come after one that the device does not run, and why they
        are not mapped; none where several subgraphs can be."""
        found: dict[int, str] = {}
        tainted: dict[int, str] = {}
        for node in graph.nodes if self.one_subgraph else ():
            before = next((tainted[v] for v in node.used if v in tainted), None)
            if before is not None:
                found[node.id] = f"its compiler maps one subgraph, which ends before {before}"
            elif self.refusal(graph, node) is not None:
                before = node.label
            if before is not None:
                tainted.update(dict.fromkeys(node.outputs, before))
        return found


@dataclass(frozen=True)
class Working:
    """How a described device works, beyond its peaks.

    efficiency: by dtype ("" for any other), the share of its peak that a kind of op reaches;
        that of "default" for other kinds, 1.0 where none is given
    sram, sram_bandwidth: memory on the chip, in bytes and in bytes a second; inputs and outputs
        of a node that fit in it together do not travel to the memory behind. 0 when there is none
    node_launch_s: seconds that every node costs beyond its work, where none is sunk with others
    """

    efficiency: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sram: float = 0.0
    sram_bandwidth: float = 0.0
    node_launch_s: float = 0.0

    def share(self, dtype: str, kind: str) -> float:
        """Return the share of its peak that a kind of op reaches on a dtype."""
        shares = self.efficiency.get(dtype) or self.efficiency.get("", {})
        return shares.get(kind, shares.get("default", 1.0))


ANYTHING = Support()
PLAIN = Working()


class DescribedDevice(Device):
    """A device from a description."""

    estimate_source = "roofline"

    def __init__(
        self, spec: DeviceSpec, support: Support = ANYTHING, working: Working = PLAIN
    ) -> None:
        self.spec, self.support, self.working = spec, support, working
        self._unmapped: tuple[Graph, dict[int, str]] | None = None

    def unsupported_reason(self, graph: Graph, node: Node) -> str | None:
        """Return None if the description has the op, its dtypes, ranks and size, and maps it."""
        if self._unmapped is None or self._unmapped[0] is not graph:
            self._unmapped = graph, self.support.unmapped(graph)
        return self.support.refusal(graph, node) or self._unmapped[1].get(node.id)

    def estimate_s(self, graph: Graph, node: Node) -> float | None:
        """Return the larger of compute and traffic, in seconds, and its launch if it has its own.

        Constants come from the memory behind the chip; the rest too, unless it fits on the chip.
        """
        work = work_of(graph, node)
        spec, working = self.spec, self.working
        rate = spec.flops.get(work.dtype) or min(spec.flops.values())
        share = working.share(work.dtype, work.kind)
        moving = sum(
            graph.type(value).nbytes
            for value in {*node.used, *node.outputs}
            if not graph.values[value].is_constant
        )
        fits = 0 < moving <= working.sram
        traffic = moving / (working.sram_bandwidth if fits else spec.bandwidth)
        traffic += (work.nbytes - moving) / spec.bandwidth
        return max(work.flops / (rate * share), traffic) + working.node_launch_s

    def compile(self, graphs: Sequence[Graph]) -> list[Executable]:
        """Raise CompileError: there is nothing to run on."""
        raise CompileError(
            f"{self.spec.name} is only described: it can be placed on, not run",
            fix="trireme place or trireme whatif",
        )

    def alloc(self, nbytes: int) -> Buffer:
        """Raise DeviceError."""
        self._absent()

    def write(self, target: Buffer, source: Array) -> None:
        """Raise DeviceError."""
        self._absent()

    def read(self, source: Buffer, target: Array) -> None:
        """Raise DeviceError."""
        self._absent()

    def _absent(self) -> NoReturn:
        raise DeviceError(f"{self.spec.name} is only described: it has no memory")
