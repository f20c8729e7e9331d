"""The networks that `calibrate` measures: small ones, from the blocks of real models.

Kernels are measured inside the networks, so weights and values lie in the caches and memory as in a
real model. No network is a published model. Values are random and seeded.
"""

from __future__ import annotations

from typing import Any

from trireme.calibration.net_builder import Net


def _mobile(width: int, last: int, act: str = "relu6") -> list[tuple[Any, ...]]:
    w = width
    return [
        ("conv", 4 * w, 3, 2, act), ("separable", 2 * w), ("inverted", 3 * w, 2, act),
        ("inverted", 3 * w, 1, act), ("inverted", 5 * w, 2, act), ("inverted", 5 * w, 1, act, 5),
        ("inverted", 9 * w, 2, act), ("inverted", 9 * w, 1, act), ("inverted", 17 * w, 2, act),
        ("inverted", 17 * w, 1, act), ("conv", last, 1, 1, act), ("mean",), ("dense_to", 1000),
    ]  # fmt: skip


_POINTWISE = [("conv", 48, 3, 2), ("separable", 96), ("separable", 112, 2), ("separable", 160),
              ("separable", 224, 2), ("separable", 224), ("separable", 448, 2), ("separable", 448),
              ("separable", 896, 2), ("separable", 896), ("mean",), ("dense_to", 600)]  # fmt: skip
_DEEP = [("conv", 48, 3, 2), ("separable", 96, 2), ("separable", 192), ("separable", 384, 2),
         ("separable", 384), ("separable", 640, 2), ("separable", 640), ("separable", 640),
         ("separable", 1152, 2), ("separable", 1152), ("mean",), ("dense_to", 600)]  # fmt: skip
"""A net of 4 MB of int8 weights, which do not stay in an L2 cache."""
_SMALL = [("conv", 16, 3), ("basic", 16), ("basic", 24, 2), ("basic", 48, 2), ("separable", 96),
          ("mean",), ("dense_to", 12), ("map", "softmax")]  # fmt: skip
_TINY = [("separable", 24), ("separable", 56), ("separable", 56, 2), ("separable", 72),
         ("separable", 72), ("separable", 136, 2), ("separable", 136), ("conv", 48), ("mean",),
         ("dense_to", 12)]  # fmt: skip
_MLP = [("dense_to", 144, "relu"), ("dense_to", 144, "relu"), ("dense_to", 112, "relu"),
        ("dense_to", 16, "relu"), ("dense_to", 96, "relu"), ("dense_to", 256, "relu"),
        ("dense_to", 640)]  # fmt: skip
_POOLS = [("pool", op, kernel, stride) for op in ("max_pool", "average_pool")
          for kernel, stride in ((3, 1), (2, 2), (3, 2))]  # fmt: skip

_MAPS = [
    ("map", "sigmoid"),
    ("again", "add"),
    ("map", "softmax"),
    ("again", "mul"),
    ("transpose", 0, 2, 1, 3),
    ("map", "tanh"),
    ("transpose", 0, 3, 1, 2),
    ("scaled",),
]
_FIRST = [("conv", 16, 3, 2), ("conv", 3), ("conv", 40, 5), ("conv", 4), ("conv", 24, 3, 2),
          ("conv", 3), ("conv", 56, 3), ("conv", 1), ("conv", 16, 3)]  # fmt: skip

NETS: tuple[Net, ...] = (
    Net("inverted", "float32", (1, 240, 240, 3), _mobile(8, 1024)),
    Net("elementwise", "float32", (1, 48, 48, 96),
        [("again", op) for op in ("add", "mul", "sub")] + [("map", "sigmoid"), ("again", "add"),
         ("map", "softmax"), ("again", "mul"), ("map", "tanh"), ("transpose", 0, 3, 1, 2)]),
    Net("bottleneck", "float32", (1, 200, 200, 3),
        [("conv", 48, 7, 2), ("pool", "max_pool", 3, 2), ("bottleneck", 48), ("bottleneck", 48),
         ("bottleneck", 96, 2), ("bottleneck", 96), ("bottleneck", 192, 2), ("bottleneck", 192),
         ("bottleneck", 448, 2), ("bottleneck", 448), ("mean",), ("dense_to", 800)]),
    Net("basic", "float32", (1, 208, 208, 3),
        [("conv", 40, 7, 2), ("pool", "max_pool", 3, 2), ("basic", 64), ("basic", 160, 2),
         ("basic", 128), ("basic", 256, 2), ("basic", 320), ("basic", 384, 2), ("basic", 512),
         ("mean",), ("dense_to", 1200)]),
    Net("encoder", "float32", (160, 224), [("encoder", 4, 896), ("encoder", 7, 640, "relu"),
                                           ("dense_to", 320), ("encoder", 5, 1280)]),
    Net("separable", "float32", (1, 192, 192, 3), _POINTWISE),
    Net("small", "float32", (1, 28, 28, 4), _SMALL),
    Net("tiny", "float32", (1, 20, 20, 16), _TINY),
    Net("layers", "float32", (1, 512), _MLP),
    Net("inverted int8", "int8", (1, 240, 240, 3), _mobile(8, 1024)),
    Net("inverted uint8", "uint8", (1, 208, 208, 3), _mobile(8, 1152)),
    Net("separable int8", "int8", (1, 104, 72, 3), _DEEP),
    Net("separable uint8", "uint8", (1, 72, 72, 3), _DEEP),
    Net("small int8", "int8", (1, 28, 28, 4), _SMALL),
    Net("tiny int8", "int8", (1, 20, 20, 16), _TINY),
    Net("layers int8", "int8", (1, 512), _MLP),
    Net("inception", "float32", (1, 44, 44, 96),
        [("inception", 64, 96, 32), ("pool", "max_pool", 3, 2), ("inception", 96, 192, 64),
         ("pool", "max_pool", 3, 2), ("inception", 160, 288, 96), ("inception", 160, 320, 128)]),
    Net("dense", "float32", (1, 104, 104, 32),
        [("dense", 32), ("dense", 32), ("conv", 80), ("pool", "average_pool", 2, 2), ("dense", 32),
         ("dense", 40), ("conv", 192), ("pool", "average_pool", 2, 2), ("dense", 32), ("dense", 32),
         ("conv", 320), ("pool", "average_pool", 2, 2), ("dense", 32), ("dense", 24)]),
    Net("shuffle", "float32", (1, 60, 60, 24),
        [("conv", 120, 1, 1, "relu", 3), ("shuffle", 3), ("depthwise", 3, 2), ("conv", 120, 1, 1,
          "", 3), ("gated",), ("conv", 240, 1, 1, "relu", 3), ("shuffle", 3), ("depthwise", 5, 2),
         ("conv", 240, 1, 1, "", 3), ("gated",), ("grow", 2), ("map", "softmax")]),
    Net("swish", "float32", (1, 256, 256, 3),
        [("conv", 24, 3, 2, "swish"), ("inverted", 40, 1, "swish"), ("inverted", 40, 2, "swish"),
         ("inverted", 72, 1, "hard_swish"), ("inverted", 88, 2, "swish"),
         ("conv", 88, 3, 1, "swish"),
         ("inverted", 88, 1, "swish"), ("inverted", 144, 2, "swish"),
         ("conv", 480, 1, 1, "swish")]),
    Net("sequence", "float32", (72, 320), [("encoder", 5, 1280), ("encoder", 5, 1280)]),
    Net("pools", "float32", (1, 88, 88, 48), _POOLS),
    Net("pools int8", "int8", (1, 88, 88, 48), [*_POOLS, ("mean",)]),
    Net("maps int8", "int8", (1, 40, 40, 64), [("again", "add"), ("again", "mul"),
        ("map", "sigmoid"), ("transpose", 0, 3, 1, 2)]),
    Net("small maps", "float32", (1, 12, 12, 40), _MAPS),
    Net("large maps", "float32", (1, 96, 96, 96), _MAPS),
    Net("small maps int8", "int8", (1, 10, 10, 48), [("again", "add"), ("map", "tanh"),
        ("transpose", 0, 3, 1, 2)]),
    Net("small pools", "float32", (1, 16, 16, 32), _POOLS),
    Net("large pools", "float32", (1, 120, 120, 56), [("pool", "max_pool", 3, 2),
        ("pool", "max_pool", 2, 1), ("pool", "average_pool", 3, 2), ("mean",)]),
    Net("first", "float32", (1, 120, 120, 3), _FIRST),
    Net("small first", "float32", (1, 44, 44, 1), _FIRST),
    Net("middle", "float32", (1, 80, 80, 3), [("conv", 12, 3, 2), ("separable", 24),
        ("separable", 56, 2), ("basic", 56), ("separable", 104, 2), ("separable", 104),
        ("separable", 216, 2), ("separable", 216), ("mean",), ("dense_to", 20)]),
    Net("wide middle", "float32", (1, 144, 144, 3), [("conv", 20, 3, 2), ("separable", 40),
        ("separable", 88, 2), ("separable", 88), ("separable", 168, 2), ("separable", 168),
        ("separable", 168), ("separable", 328, 2), ("separable", 328), ("mean",),
        ("dense_to", 400)]),
    Net("tiny uint8", "uint8", (1, 20, 20, 16), _TINY),
    Net("small uint8", "uint8", (1, 56, 56, 16), _SMALL),
    Net("generator", "float32", (1, 12, 12, 96),
        [("transposed", 64, 4, 2), ("group_norm", 8), ("transposed", 40, 3, 2), ("group_norm", 40),
         ("transposed", 24, 2, 2), ("group_norm", 1), ("transposed", 16, 4, 2), ("group_norm", 4)]),
    Net("recurrent", "float32", (24, 1, 80),
        [("recurrent", "lstm", 144), ("recurrent", "gru", 112), ("recurrent", "rnn", 96),
         ("recurrent", "gru", 64), ("recurrent", "lstm", 48)]),
    Net("spectra", "float32", (64, 400), [("spectrum",), ("dense_to", 256), ("spectrum",),
                                          ("dense_to", 60), ("spectrum",)]),
    Net("lookups", "float32", (64, 240),
        [("frames", 6, 3), ("summed", 0), ("scattered",), ("best", 120), ("lookup", 320),
         ("summed", 1), ("frames", 4, 1), ("scattered",), ("best", 8), ("lookup", 64)]),
    Net("small lookups", "float32", (24, 48),
        [("lookup", 96), ("summed", 1), ("frames", 2, 1), ("scattered",), ("best", 40),
         ("summed", 0), ("lookup", 16)]),
    Net("large lookups", "float32", (256, 512),
        [("scattered",), ("summed", 0), ("frames", 8, 6), ("best", 100), ("lookup", 400),
         ("summed", 1)]),
    Net("maps uint8", "uint8", (1, 40, 40, 64), [("map", "sigmoid"), ("again", "add"),
        ("map", "tanh"), ("transpose", 0, 3, 1, 2)]),
    Net("small maps uint8", "uint8", (1, 12, 12, 24), [("map", "tanh"), ("map", "sigmoid")]),
)  # fmt: skip
"""The networks by importance; a short time limit leaves out the last ones."""
