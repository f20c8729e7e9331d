"""The table of native kernels, filled: import this, not kernels.py, to look ops up.

A new family of kernels adds its rules in its own module and one line here.
"""

from trireme.devices.cpu import (
    channels,
    conv_transpose,
    detection,
    direct,
    elementwise,
    fft,
    fuse,
    group_norm,
    indexed,
    lookup,
    masks,
    move,
    pads,
    products,
    ranking,
    recurrent,
    resize,
    rows,
    running,
    top_k,
    window,
)
from trireme.devices.cpu.int8 import conv_transpose as int8_conv_transpose
from trireme.devices.cpu.int8 import elementwise as int8_elementwise
from trireme.devices.cpu.int8 import linear as int8_linear
from trireme.devices.cpu.int8 import reduce as int8_reduce
from trireme.devices.cpu.int8 import resize as int8_resize
from trireme.devices.cpu.kernels import TABLE, Rule, native_reason

__all__ = [
    "TABLE",
    "Rule",
    "channels",
    "conv_transpose",
    "detection",
    "direct",
    "elementwise",
    "fft",
    "fuse",
    "indexed",
    "group_norm",
    "int8_conv_transpose",
    "int8_elementwise",
    "int8_linear",
    "int8_reduce",
    "int8_resize",
    "lookup",
    "masks",
    "move",
    "native_reason",
    "pads",
    "products",
    "ranking",
    "recurrent",
    "resize",
    "rows",
    "running",
    "top_k",
    "window",
]
