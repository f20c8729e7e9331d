"""A device that exists as figures alone: it can be placed on and priced, not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from trireme.cost import Work, work_of
from trireme.device import Buffer, Device, DeviceSpec, Executable
from trireme.dtypes import Array
from trireme.errors import CompileError, DeviceError
from trireme.graph import Graph, Node


@dataclass(frozen=True)
class Support:
    """What a described device runs.

    ops: the ops it has, all when empty; except_ops: those it has not
    dtypes: of the inputs and outputs of a node, all when empty
    max_rank: dimensions of a tensor, 0 when unlimited
    """

    ops: frozenset[str] = frozenset()
    except_ops: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    max_rank: int = 0


class DescribedDevice(Device):
    """A device from a description.

    efficiency: the share of its peak that a kind of op reaches; 1.0 where none is given
    """

    def __init__(
        self, spec: DeviceSpec, support: Support, efficiency: dict[str, float] | None = None
    ) -> None:
        self.spec, self.support = spec, support
        self.efficiency = efficiency or {}

    def unsupported_reason(self, graph: Graph, node: Node) -> str | None:
        """Return None if the description has the op, its dtypes and ranks."""
        support = self.support
        if node.op in support.except_ops or (support.ops and node.op not in support.ops):
            return f"its description has no {node.op}"
        for value in (*node.used, *node.outputs):
            type = graph.type(value)
            if value in node.outputs or not graph.values[value].is_constant:
                if support.dtypes and type.dtype not in support.dtypes:
                    return f"its description has no {type.dtype}"
                if support.max_rank and len(type.shape) > support.max_rank:
                    return f"its description has tensors of rank {support.max_rank} at most"
        return None

    def estimate_s(self, graph: Graph, node: Node) -> float | None:
        """Return the roofline's seconds, with the share of the peak that the kind of op reaches."""
        return self.seconds(work_of(graph, node))

    def seconds(self, work: Work) -> float:
        """Return the larger of compute and traffic."""
        spec = self.spec
        rate = spec.flops.get(work.dtype) or min(spec.flops.values())
        share = self.efficiency.get(work.kind, self.efficiency.get("default", 1.0))
        return max(work.flops / (rate * share), work.nbytes / spec.bandwidth)

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
