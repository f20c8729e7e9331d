"""Loops that set rows of a list between two slices of it, while a counter is below a limit."""

import numpy as np
from model_builder import Model, ints

from trireme.ir.graph import TensorType

END = 2**63 - 1
COMPARISONS = ("less", "less_or_equal", "greater", "greater_or_equal")


def row_loop(
    length=5,
    count=1,
    first=0,
    step=1,
    gap=0,
    limit=5,
    cap=20,
    compares="less",
    trips=None,
    slip=0,
    quants=(None, None),
):
    """A loop that sets `count` rows from i + gap on, while i + step is below a limit.

    cap: the most turns that the condition allows; slip: rows that the second slice begins too late
    quants: of the list and of the rows, which are int8 then
    """
    number, bool_ = TensorType((), "int32"), TensorType((), "bool")
    kind = "int8" if quants[0] else "float32"
    rows = TensorType((count, 2), kind, quants[1])
    listed = TensorType(("?", 2), kind, quants[0])
    b = Model(turn=TensorType((), "int64"), going=bool_, i=number, s=listed, r=rows)
    at = b.op("add", b.op("cast", b.op("reshape", b.i, ints(1)), to="int64"), ints(gap))
    after = b.op("add", at, ints(count + slip))
    of_list = {"quants": quants[:1]}
    before = b.op("slice", b.s, ints(0), at, ints(0), **of_list)
    left = b.op("slice", b.s, after, ints(END), ints(0), **of_list)
    row = b.op("relu", b.r, quants=quants[1:])
    made = b.op("concat", before, row, left, axis=0, **of_list)
    following = b.op("add", b.i, np.array(step, np.int32))
    sides = following, np.array(limit, np.int32)
    ends = b.op(compares, *(sides if compares.startswith("less") else sides[::-1]))
    more = b.op("and", ends, b.op("less", b.turn, np.array(cap)))
    body = b.finish(more, following, made)
    m = Model(s=TensorType((length, 2), kind, quants[0]), r=rows)
    given = None if trips is None else m.constant("trips", np.array(trips))
    start = m.constant("first", np.array(first, np.int32))
    made = m.add_node(
        "loop",
        [given, None, start, m.s, m.r],
        {"body": body, "carried": 2},
        outputs=2,
        quants=(None, quants[0]),
    )
    return m.finish(*made)


def random_row_loop(seed):
    """A loop of random numbers; some lists keep their length, others grow."""
    rng = np.random.default_rng(seed)
    return row_loop(
        length=int(rng.integers(1, 6)),
        count=int(rng.integers(1, 3)),
        first=int(rng.integers(-1, 4)),
        step=int(rng.integers(0, 3)),
        gap=int(rng.integers(-1, 2)),
        limit=int(rng.integers(-1, 7)),
        cap=int(rng.integers(0, 6)),
        compares=COMPARISONS[rng.integers(4)],
        trips=None if rng.integers(2) else int(rng.integers(0, 6)),
        slip=int(rng.integers(4) == 0),
    )
