"""What decides about the kernel of a recurrent layer: sizes, directions, operands, tiles."""

from __future__ import annotations

from trireme.devices.cpu.codegen.index import known
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.recurrent_cell import Cell, GateProduct
from trireme.support.records import dataclass


@dataclass(frozen=True)
class Layer:
    """A recurrent layer over `steps` of `batch` sequences.

    backward: of each direction, whether it runs from a sequence's end
    is_batch_first: layout 1, [B,S,..] for x and y, [B,D,H] for states
    has_lengths, has_states: whether lengths and which first states are inputs
    made: outputs that there are, of y, y_h and y_c
    """

    cell: Cell
    hidden: int
    steps: int
    batch: int
    backward: tuple[bool, ...]
    is_batch_first: bool
    has_lengths: bool
    has_states: tuple[bool, ...]
    made: int

    @property
    def directions(self) -> int:
        """1 or 2."""
        return len(self.backward)

    def padded(self, isa: Isa) -> int:
        """Return the hidden units in whole vectors."""
        return -(-self.hidden // isa.lanes) * isa.lanes

    def tile(self, isa: Isa) -> int:
        """Return the sequences that a kernel carries at a time."""
        widest = max(len(stage.gates) * vectors_of(isa, stage, self) for stage in self.cell.stages)
        batch = self.batch if known(self.batch) else 4
        return max(1, min(batch, 4, (isa.registers - 4) // widest))

    def seconds(self, isa: Isa) -> float:
        """Estimate all steps for one thread: weights from the L2 cache, and the activations."""
        sequences = self.directions * self.batch
        units = self.padded(isa) * self.cell.gates
        weights = sequences * units * self.hidden * 4 / self.tile(isa) / 1e11
        return self.steps * (weights + sequences * units * 15 / (isa.lanes * 2e9))


def vectors_of(isa: Isa, stage: GateProduct, layer: Layer) -> int:
    """Return the vectors of units of a block: enough sums to hide the latency of an addition."""
    gates = len(stage.gates)
    most = 8 // gates if layer.batch == 1 or isa.registers >= 32 else 1
    return max(1, min(most, layer.padded(isa) // isa.lanes))


@dataclass(frozen=True)
class LayerPart:
    """Some steps of a layer: whether they are the first, and the last.

    span: the first step and the one after the last; None where they are an operand
    """

    layer: Layer
    is_first: bool
    is_last: bool
    span: tuple[int, int] | None = None


def operand_names(part: LayerPart) -> list[str]:
    """Return what the operands of a kernel are."""
    layer, is_first, is_last = part.layer, part.is_first, part.is_last
    cell = layer.cell
    names = ["gates", "weights", *["scales"] * (cell.weights != "float")]
    names += ["bias"] * bool(cell.separate) + ["peepholes"] * cell.peepholes
    names += ["lengths", "fault"] * layer.has_lengths
    if is_first:
        names += [f"first {k}" for k, given in enumerate(layer.has_states) if given]
    names += [*["span"] * (part.span is None), *["states"] * (not is_first)]
    return [*names, *("y", "last 0", "last 1")[: layer.made], *["states"] * (not is_last)]


def local_bytes(isa: Isa, layer: Layer) -> int:
    """Return the bytes that each thread needs of its own: four states of a tile of sequences."""
    return 4 * 4 * layer.tile(isa) * layer.padded(isa)
