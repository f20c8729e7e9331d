"""A whole random graph from a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.fuzz import table_quantized
from lab.fuzz.grower import RANKS, Grower, Grown, Refused
from lab.fuzz.rows import Row
from lab.fuzz.shrink import names_read
from lab.fuzz.table import ROWS

HALF = """
    Relu LeakyRelu Elu Selu Celu HardSwish HardSigmoid Mish Gelu Tanh Sigmoid Abs Neg Exp Log Sqrt
    Erf Softplus Softsign Reciprocal Sin Cos Floor Ceil Round Sign Identity Clip Add Sub Mul Div Max
    Min ReduceMax ReduceMean ReduceSum Softmax MatMul Gemm Conv ConvTranspose MaxPool AveragePool
    GlobalAveragePool GlobalMaxPool Resize DepthToSpace SpaceToDepth Transpose Reshape Flatten
    Squeeze Unsqueeze Expand Tile Gather Concat Split Slice Pad BatchNormalization
"""
KINDS: dict[str, tuple[str, Sequence[Row]]] = {
    "any": ("float32", ROWS),
    "half": ("float16", [row for row in ROWS if row.op in HALF.split()]),
    "stored": ("float32", table_quantized.ROWS),
}
"""Which graphs there are: of every op; in float16, of what an NPU has; of stored integers alone."""
OPSETS = (*range(9, 25), 13, 17, 18, 21, 22)
"""The opsets drawn from; those that exporters write more often."""


def grow(seed: int, kind: str = "any", least: int = 5, most: int = 40) -> Grown:
    """Return the random graph of a seed: `least` to `most` steps of the table."""
    rng, (real, rows) = np.random.default_rng(seed), KINDS[kind]
    g = Grower(seed, int(rng.choice(OPSETS)), rng, real)
    steps = int(rng.integers(least, most + 1))
    weights = np.array([row.weight for row in rows])
    chosen = rng.choice(len(rows), steps * 4, p=weights / weights.sum())
    for _ in range(int(rng.integers(1, 3))):
        g.input(g.random("float32", g.shape(int(g.choose(RANKS)))))
    for index in chosen:
        if len(g.rounding) + len(g.nodes) and len(g.nodes) >= steps:
            break
        try:
            rows[index].build(g)
        except Refused:
            continue
    return g.finish(outputs(g))


def outputs(g: Grower) -> list[str]:
    """Most values that no node reads, and some that others do read."""
    read = {name for node in g.nodes for name in names_read(node)}
    made = [name for node in g.nodes for name in node.output if node.op_type != "Constant"]
    wanted = [name for name in made if g.chance(0.95 if name not in read else 0.08)]
    return wanted or made[-1:]
