"""Commands as users type them, without what is known of this machine, and a small model."""

import numpy as np

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.tools.cli import main


def save_small(path):
    """Save a convolution and a relu, and return where."""
    b = GraphBuilder("small")
    x = b.input("x", TensorType((1, 6, 6, 3), "float32"))
    w = b.constant("w", np.full((4, 3, 3, 3), 0.1, np.float32))
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NHWC"}
    y = b.add("conv", x, w, source="test:conv", names=["y"], **attrs)
    trireme.save(b.finish(b.add("relu", y, names=["z"])), path)
    return str(path)


def call(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err
