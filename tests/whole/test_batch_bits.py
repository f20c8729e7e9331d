"""A row has the same bits alone and in a batch of any size, on one thread and on two.

No sum follows the batch: kernels cut it, and choose their algorithm by the shape of one item. A
service may then gather requests as they come, and each gets the answer that it would get alone.
"""

import numpy as np
import pytest
from float_graphs import CONV, conv_net, encoder_block, weights
from zoo import zoo_path

from trireme import ExecutionOptions, Session
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.feeds import random_feeds

SEED = 20261126
BATCHES = (8, 1, 2, 5)
ZOO = (
    "resnet8_cifar10_f32.tflite",
    "kws_dscnn_f32.tflite",
    "vww_96_float.tflite",
    "mobilenet_v1_0.25_224_f32.tflite",
    "vww_96_int8.tflite",
)


def first_rows(model, batch, threads, feeds):
    """The first row of each output, and the feeds, which are drawn where there are none."""
    options = ExecutionOptions(model_cache=None)
    with Session(
        model, devices=["cpu"], threads=threads, batch=batch, execution_options=options
    ) as session:
        feeds = feeds or random_feeds(session.inputs, SEED)
        found = session.run({name: rows[:batch] for name, rows in feeds.items()})
    return [np.array(rows[:1]) for rows in found.values()], feeds


def check(model):
    feeds, want = None, None
    for threads in (1, 2):
        for batch in BATCHES:
            found, feeds = first_rows(model, batch, threads, feeds)
            want = want or found
            for a, b in zip(want, found, strict=True):
                assert a.tobytes() == b.tobytes(), f"batch {batch}, {threads} threads"


def wide_net(seed):
    """3x3 layers whose fastest form for a large batch is another one than for an image."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("wide")
    x = b.input("x", TensorType((1, 14, 14, 128), "float32"))
    for channels, stride in ((128, 1), (256, 2), (256, 1)):
        depth = b.values[x].type.dims[3]
        w = b.constant("w", weights(rng, channels, 3, 3, depth))
        bias = b.constant("b", rng.standard_normal(channels).astype(np.float32))
        x = b.add("conv", x, w, bias, **(CONV | {"strides": (stride, stride)}))
    return b.finish(x)


@pytest.mark.parametrize("make", [conv_net, encoder_block, wide_net])
def test_small_nets(make):
    check(make(SEED))


@pytest.mark.parametrize("name", ZOO)
def test_trained_nets(name):
    check(zoo_path(name))
