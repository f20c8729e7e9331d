"""One session runs a network at any size of its batch and its sequence, within bounds."""

import numpy as np

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType


def tagger() -> trireme.Graph:
    """Return a network that gives each token of a sentence one of five tags."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("tagger")
    b.symbols.update(batch=(1, 8), tokens=(1, 128))
    ids = b.input("ids", TensorType(("batch", "tokens"), "int64"))
    table = b.constant("table", rng.standard_normal((100, 32)).astype(np.float32))
    w = b.constant("w", rng.standard_normal((32, 5)).astype(np.float32))
    x = b.add("tanh", b.add("gather", table, ids, axis=0))
    return b.finish(b.add("softmax", b.add("matmul", x, w), axis=-1, names=["tags"]))


def main() -> None:
    """Run three shapes, and one that is out of bounds."""
    rng = np.random.default_rng(1)
    with trireme.Session(tagger()) as session:
        for shape in ((1, 7), (8, 128), (3, 1)):
            tags = session.run({"ids": rng.integers(0, 100, shape)})["tags"]
            print(f"{shape} -> {tags.shape}, {session.stages[0].tier}")
        try:
            session.run({"ids": np.zeros((9, 4), np.int64)})
        except trireme.RunError as error:
            print(error.summary)


if __name__ == "__main__":
    main()
