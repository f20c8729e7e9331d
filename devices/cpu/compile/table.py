"""The table of native kernels, filled: import this, not lowering.py, to look ops up.

A new family of kernels adds its rules in its own module and one line here.
"""

from trireme.devices.cpu.compile import fusion as fuse
from trireme.devices.cpu.kernels.dynamic_range import recurrent as dynamic_recurrent
from trireme.devices.cpu.kernels.f32 import (
    conv_transpose,
    detection,
    elementwise,
    fft,
    group_norm,
    products,
    ranking,
    recurrent,
    resize,
    top_k,
    trees,
)
from trireme.devices.cpu.kernels.f32 import cumulative as running
from trireme.devices.cpu.kernels.f32 import depthwise_pool as window
from trireme.devices.cpu.kernels.f32 import direct_conv as direct
from trireme.devices.cpu.kernels.f32 import lrn as channels
from trireme.devices.cpu.kernels.f32 import reductions as rows
from trireme.devices.cpu.kernels.int8 import conv_transpose as int8_conv_transpose
from trireme.devices.cpu.kernels.int8 import elementwise as int8_elementwise
from trireme.devices.cpu.kernels.int8 import linear as int8_linear
from trireme.devices.cpu.kernels.int8 import matmul as int8_matmul
from trireme.devices.cpu.kernels.int8 import recurrent as int8_recurrent
from trireme.devices.cpu.kernels.int8 import reduce as int8_reduce
from trireme.devices.cpu.kernels.int8 import resize as int8_resize
from trireme.devices.cpu.kernels.int8 import sixteen as int8_sixteen
from trireme.devices.cpu.kernels.int8 import softmax as int8_softmax
from trireme.devices.cpu.kernels.int8 import softmax_16 as int8_softmax_16
from trireme.devices.cpu.kernels.int8 import svdf as int8_svdf
from trireme.devices.cpu.kernels.lowering import TABLE, Rule, native_reason
from trireme.devices.cpu.kernels.movement import gather as lookup
from trireme.devices.cpu.kernels.movement import indexed, masks, move, pads, states, stored_concat
from trireme.devices.cpu.kernels.nbits import linear as nbits_linear

__all__ = [
    "TABLE",
    "Rule",
    "channels",
    "conv_transpose",
    "detection",
    "direct",
    "dynamic_recurrent",
    "elementwise",
    "fft",
    "fuse",
    "indexed",
    "group_norm",
    "int8_conv_transpose",
    "int8_elementwise",
    "int8_linear",
    "int8_matmul",
    "int8_recurrent",
    "int8_reduce",
    "int8_resize",
    "int8_sixteen",
    "int8_softmax",
    "int8_softmax_16",
    "int8_svdf",
    "lookup",
    "masks",
    "move",
    "native_reason",
    "nbits_linear",
    "pads",
    "states",
    "stored_concat",
    "products",
    "ranking",
    "recurrent",
    "resize",
    "rows",
    "running",
    "top_k",
    "trees",
    "window",
]
