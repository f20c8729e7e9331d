"""The operands and the thread memory of a Winograd kernel, for one convolution."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.devices.cpu.codegen.ir import Value
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.winograd.plan import WinogradCut
from trireme.devices.cpu.kernels.f32.winograd.transforms import Scheme
from trireme.support.records import dataclass


@dataclass(frozen=True)
class WinogradConv:
    """A convolution of one group with a square kernel and equal strides, with its epilogue."""

    batch: int
    window: ImageWindow
    outputs: int
    bias: bool
    residual: bool
    activation: str


@dataclass(frozen=True)
class WinogradLayout:
    """Byte offsets in the thread's memory, and strides in elements."""

    zeros: int
    dump: int
    sources: int
    """Addresses of the i * i input pixels of one tile."""
    targets: int
    """Addresses of the m * m outputs of every tile of the chunk."""
    residuals: int
    scratch: int
    """A vector for each of the m * m outputs of a tile."""
    v: int
    v_row: int
    v_point: int
    m: int
    m_point: int
    nbytes: int


def layout_of(isa: Isa, conv: WinogradConv, cut: WinogradCut, made: Scheme) -> WinogradLayout:
    """Return the layout for tiles of a scheme."""
    pixels, points = made.outputs**2, made.points**2
    channels = -(-conv.window.channels // isa.lanes) * isa.lanes
    most = -(-max(channels, conv.outputs) // isa.lanes) * isa.lanes + isa.lanes
    v_row = -(-channels // 16) * 16 + 16  # rows of a power of two would share cache sets
    sizes = {
        "zeros": 4 * most,
        "dump": 4 * most,
        "sources": 8 * made.inputs**2,
        "targets": 8 * pixels * cut.tiles,
        "residuals": 8 * pixels * cut.tiles * conv.residual,
        "scratch": 4 * isa.lanes * pixels,
        "v": 4 * points * cut.tiles * v_row,
        "m": 4 * points * cut.tiles * cut.width,
    }
    at, offsets = 0, {}
    for name, nbytes in sizes.items():
        offsets[name] = at
        at += -(-nbytes // 64) * 64
    return WinogradLayout(
        **offsets, v_row=v_row, v_point=cut.tiles * v_row, m_point=cut.tiles * cut.width, nbytes=at
    )


@dataclass(frozen=True)
class WinogradOperands:
    """Where a kernel's operands lie; weights: the model's own, as `weight_at` reads them."""

    x: Value
    u: Value
    weights: tuple[Value, ...]
    bias: Value | None
    residual: Value | None
    y: Value

    @staticmethod
    def of(
        conv: WinogradConv,
        x: Value,
        u: Value,
        weights: tuple[Value, ...],
        extra: Sequence[Value],
        y: Value,
    ) -> WinogradOperands:
        """Return the operands; extra: bias and residual where there are any."""
        rest = list(extra)
        bias = rest.pop(0) if conv.bias else None
        return WinogradOperands(x, u, weights, bias, rest.pop(0) if conv.residual else None, y)
