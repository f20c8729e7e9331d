"""The table of polymorphic kernels, filled: import this, not step.py, to look ops up."""

from trireme.devices.cpu.kernels.polymorphic import (
    elementwise,
    gather,
    images,
    moves,
    products,
    rows,
)
from trireme.devices.cpu.kernels.polymorphic.step import POLYMORPHIC

__all__ = ["POLYMORPHIC", "elementwise", "gather", "images", "moves", "products", "rows"]
