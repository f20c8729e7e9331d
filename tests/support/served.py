"""Small models behind a server on a free port, for tests of serving."""

import threading
from contextlib import ExitStack, contextmanager

import numpy as np

import trireme
import trireme.ops  # noqa: F401
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.serving.models import FixedModels, SessionModel
from trireme.serving.server import Server


def sum_graph(shape=(2, 3), dtype="float32"):
    """z = x + y."""
    b = GraphBuilder("sum")
    x, y = b.input("x", TensorType(shape, dtype)), b.input("y", TensorType(shape, dtype))
    return b.finish(b.add("add", x, y, names=["z"]))


def same_graph(dtype, shape=("n",)):
    """y = x, of any dtype."""
    b = GraphBuilder("same")
    return b.finish(b.add("identity", b.input("x", TensorType(shape, dtype)), names=["y"]))


def net_graph(seed=0):
    """A convolution, a relu, a mean and a product: logits of 10 classes and the features."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("net")
    x = b.input("image", TensorType((1, 12, 12, 3), "float32"))
    w = b.constant("w", rng.standard_normal((8, 3, 3, 3)).astype(np.float32))
    attrs = {"strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NHWC"}
    y = b.add("relu", b.add("conv", x, w, **attrs))
    features = b.add("reshape", y, b.constant("to", np.array([1, 288])), names=["features"])
    v = b.constant("v", rng.standard_normal((288, 10)).astype(np.float32))
    return b.finish(b.add("matmul", features, v, names=["logits"]), features)


class GatedModel(SessionModel):
    """A model whose runs wait until `gate` is set; `begun` counts those that began."""

    def __init__(self, name, session, concurrency=1):
        super().__init__(name, session)
        self.concurrency = concurrency
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.ended = 0

    def run(self, feeds, timeout_s=None):
        self.begun.release()
        assert self.gate.wait(30)
        self.ended += 1
        return super().run(feeds, timeout_s)


@contextmanager
def serving(graphs, kinds=None, **options):
    """Serve graphs by name; yield the server, whose `.models` has their SessionModels by name."""
    with ExitStack() as held:
        models = {}
        for name, graph in graphs.items():
            session = held.enter_context(trireme.Session(graph, threads=1))
            models[name] = (kinds or {}).get(name, SessionModel)(name, session)
        server = Server(FixedModels(models.values()), http_port=0, **options)
        server.models = models
        held.enter_context(server)
        yield server
