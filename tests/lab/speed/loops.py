"""Time a turn of loops beside ONNX Runtime, one thread each.

    python -m lab.speed.loops [CASE ...] --rounds 15

A turn's microseconds are the slope between few and many turns. Engines take turns; each ratio is of
one round, and the table has the median of the ratios.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from decode_loops import Sizes, decode_feeds, decode_loop
from onnx import parser

from lab.speed.peers import onnx_session
from trireme.runtime.session.session import Session
from trireme.support.timing import seconds_of

LEAST_US = 1e-3
"""A shorter turn is noise of a slope."""
HEAD = '<ir_version: 10, opset_import: ["" : 22]>\n'
Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A loop.

    model: in ONNX's text form, or as bytes; feeds: by the number of turns
    few, many: the numbers of turns between which the slope is taken
    bar: the least ratio that ONNX Runtime must take; most_us: the most that a turn of ours may take
    """

    model: str | bytes
    feeds: Callable[[int], Feeds]
    few: int = 10
    many: int = 1000
    bar: float = 1.0
    most_us: float | None = None
    opens: Mapping[str, object] = field(default_factory=dict)


def loop(shape: str, step: str, rows: bool = False, head: str = "") -> str:
    """A loop that carries one value, perhaps with a row a turn."""
    outs, outer, made = "float[{0}] t", "y", "float[{0}] y"
    if rows:
        outs, outer, made = outs + ", float[{0}] row", "y, all", made + ", float[turns, {0}] all"
    step = step + ("  row = Identity(t)" if rows else "")
    outs, made = outs.format(shape), made.format(shape)
    return f"""
timed (int64 n, float[{shape}] x, float[{shape}] w) => ({made})
{{
    {head}
    {outer} = Loop (n, , x) <body = turn
        (int64 i, bool going, float[{shape}] s) => (bool more, {outs})
        {{ more = Identity(going)  {step} }}
    >
}}
"""


def growing(step: str, row: str, made: str = "", rows: str = "", outer: str = "") -> str:
    """A loop whose carried value gets longer by a part a turn; row: the dimensions after."""
    return f"""
timed (int64 n, float[k{row}] x, float[j{row}] w) => (float[m{row}] y{outer})
{{
    y{", all" if outer else ""} = Loop (n, , x) <body = turn
        (int64 i, bool going, float[a{row}] s) => (bool more, float[b{row}] t{rows})
        {{ more = Identity(going)  {step} }}
    >
}}
"""


def carried(*shape: int) -> Callable[[int], Feeds]:
    """Feeds for a loop; products by these weights keep the size of a value."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape).astype(np.float32)
    w = np.full(shape, 1 / shape[-1], np.float32)
    return lambda turns: {"n": np.array(turns), "x": x, "w": w}


SCAN = """
timed (float[16] h, float[T,16] xs) => (float[16] y, float[T,16] all)
{
    y, all = Scan (h, xs) <num_scan_inputs = 1, body = step
        (float[16] s, float[16] x) => (float[16] t, float[16] row)
        { t = Add(s, x)  row = Mul(t, x) }
    >
}
"""
UNTIL = """
timed (float n, float x) => (float y)
{
    one = Constant <value = float {1}> ()
    y = Loop (, , x) <body = turn
        (int64 i, bool going, float s) => (bool more, float t)
        { t = Add(s, one)  more = Less(t, n) }
    >
}
"""
CHOOSE = """
two = Constant <value = int64 {2}> ()
zero = Constant <value = int64 {0}> ()
"""
BRANCH = """
r = Mod(i, two)  even = Equal(r, zero)
t = If (even) <
    then_branch = one () => (float[1,16] p) { p = Sub(s, w) },
    else_branch = two_ () => (float[1,16] q) { q = Add(s, w) }
>
"""
ADD = "t = Add(s, w)"
SETTLE = """
timed (int64 n, float[T,8] xs, float[8,8] w, float[8] h) => (float[8] y)
{
    six = Constant <value = int64 {6}> ()
    small = Constant <value = float {0.05}> ()
    y = Loop (n, , h) <body = row
        (int64 i, bool going, float[8] s) => (bool more, float[8] t)
        {
            more = Identity(going)  x = Gather(xs, i)
            t = Loop (six, , s) <body = settle
                (int64 j, bool on, float[8] a) => (bool on2, float[8] b)
                {
                    p = MatMul(a, w)  q = Add(x, p)  b = Tanh(q)
                    d = Sub(b, a)  e = Abs(d)  m = ReduceMax <keepdims = 0> (e)
                    on2 = Greater(m, small)
                }
            >
        }
    >
}
"""
NESTED = """
three = Constant <value = int64 {3}> ()
t = Loop (three, , s) <body = inner
    (int64 j, bool on, float[1,16] a) => (bool on2, float[1,16] b)
    { on2 = Identity(on)  b = Add(a, w) }
>
"""
NESTED_OPEN = NESTED.replace("three, ", "inside, ").replace(
    "three = Constant <value = int64 {3}> ()", "r = Mod(i, two)  inside = Add(r, two)"
)
CONVOLUTIONS = """
k = ConstantOfShape <value = float[1] {0.01}> (kernel)
p = Conv <pads = [1, 1, 1, 1]> (s, k)  q = Relu(p)
u = Conv <pads = [1, 1, 1, 1]> (q, k)  t = Add(u, w)
"""
KERNEL = "kernel = Constant <value = int64[4] {16, 16, 3, 3}> ()"
READ = """
t = Concat <axis = 0> (s, w)
size = Shape(s)  least = ReduceMin <keepdims = 1> (s)
row = Squeeze(least)
"""
ATTENTION = """
q = Transpose <perm = [1, 0]> (w)  scores = MatMul(s, q)
shares = Softmax <axis = 0> (scores)  turned = Transpose <perm = [1, 0]> (shares)
mixed = MatMul(turned, s)  new = Add(mixed, w)
t = Concat <axis = 0> (s, new)
"""
KEPT = """
t = Concat <axis = 0> (s, w)
q = Transpose <perm = [1, 0]> (w)  scores = MatMul(t, q)  row = ReduceMax <keepdims = 0> (scores)
"""


def scanned(turns: int) -> Feeds:
    """Feeds for a scan of so many rows."""
    return {"h": np.zeros(16, np.float32), "xs": np.ones((turns, 16), np.float32)}


def rows_to_settle(turns: int) -> Feeds:
    """Feeds for the program of examples/control_flow.py, without its early exit."""
    rng = np.random.default_rng(3)
    xs, w = rng.standard_normal((turns, 8)), rng.standard_normal((8, 8)) / 4
    h = np.zeros(8, np.float32)
    return {"n": np.array(turns), "xs": xs.astype("f4"), "w": w.astype("f4"), "h": h}


def decoding(kind: str, sizes: Sizes) -> Case:
    """A decoder whose steps are one loop of the graph."""
    fed = partial(decode_feeds, sizes, kind)
    return Case(decode_loop(sizes, kind), fed, few=70, many=256)


INDEXED = """
timed (int64 n, float[64,256] x, float[1,256] w, int64[1,1] at, int64[1] flat)
    => (float[64,256] y{made})
{{
    y{outer} = Loop (n, , x) <body = turn
        (int64 i, bool going, float[64,256] s) => (bool more, float[64,256] t{rows})
        {{ more = Identity(going)  {step} }}
    >
}}
"""


def indexed(step: str, rows: bool = False) -> Case:
    """A loop that reads and writes rows of 256 at fed indices; rows: keeps the row that it read."""
    outs = {"outer": "", "made": "", "rows": ""}
    if rows:
        outs = {"outer": ", all", "made": ", float[m,1,256] all", "rows": ", float[1,256] p"}
    rng = np.random.default_rng(3)
    fed = {"x": rng.standard_normal((64, 256)), "w": np.full((1, 256), 0.5)}
    arrays = {name: one.astype(np.float32) for name, one in fed.items()}
    at = {"at": np.array([[-5]]), "flat": np.array([9])}
    text = INDEXED.format(step=step, **outs)
    most_us = 0.5 if step.startswith("t") else None  # the others copy the state
    return Case(text, lambda n: {"n": np.array(n), **arrays, **at}, most_us=most_us)


SMALL, LARGE = Sizes(layers=2, depth=16), Sizes(layers=4, depth=64)
CASES = {
    "add": Case(loop("1,16", ADD), carried(1, 16), bar=2.0, most_us=0.5),
    "until": Case(
        UNTIL,
        lambda n: {"n": np.array(n, np.float32), "x": np.zeros((), np.float32)},
        bar=2.0,
        most_us=0.5,
    ),
    "add, rows": Case(loop("1,16", ADD, rows=True), carried(1, 16), bar=2.0, most_us=0.5),
    "scan of open length": Case(SCAN, scanned, bar=2.0, most_us=0.5),
    "open shape": Case(loop("k,16", ADD), carried(4, 16), bar=1.0, most_us=0.5),
    "open shape, rows": Case(loop("k,16", ADD, rows=True), carried(4, 16), bar=1.0, most_us=0.5),
    "branch": Case(loop("1,16", BRANCH, head=CHOOSE), carried(1, 16), most_us=5.0),
    "growing": Case(growing("t = Concat <axis = 0> (s, w)", ""), carried(4), many=110, most_us=5.0),
    "growing, many turns": Case(growing("t = Concat <axis = 0> (s, w)", ""), carried(4), 500, 2000),
    "growing, read": Case(
        growing(READ, "", rows=", float row", outer=", float[turns] all"),
        carried(4),
        few=70,
        many=170,
        most_us=5.0,
    ),
    "growing attention, short": Case(growing(ATTENTION, ",256"), carried(1, 256), 70, 270),
    "growing attention": Case(growing(ATTENTION, ",256"), carried(1, 256), 500, 1000),
    "growing, new value read": Case(
        growing(KEPT, ",64", rows=", float row", outer=", float[turns] all"),
        carried(1, 64),
        70,
        570,
    ),
    "nested": Case(loop("1,16", NESTED), carried(1, 16), most_us=5.0),
    "nested, open": Case(loop("1,16", NESTED_OPEN, head=CHOOSE), carried(1, 16), most_us=5.0),
    "settle": Case(SETTLE, rows_to_settle, 10, 210, bar=1.0),
    "row written": indexed("t = ScatterND(s, at, w)"),
    "row read and written": indexed("p = Gather(s, flat)  t = ScatterND(s, at, p)"),
    "row read, kept": indexed("p = Gather(s, flat)  t = ScatterND(s, at, p)", rows=True),
    "convolutions": Case(
        loop("1,16,32,32", CONVOLUTIONS, head=KERNEL), carried(1, 16, 32, 32), 4, 36
    ),
    "product of 64": Case(loop("64,64", "t = MatMul(s, w)"), carried(64, 64), many=500),
    "product of 128": Case(loop("128,128", "t = MatMul(s, w)"), carried(128, 128), 8, 200),
    "product of 256": Case(loop("256,256", "t = MatMul(s, w)"), carried(256, 256), 4, 64),
    "decode, concat, small": decoding("concat", SMALL),
    "decode, concat": decoding("concat", LARGE),
    "decode, scatter_nd, small": decoding("scatter_nd", SMALL),
    "decode, scatter_nd": decoding("scatter_nd", LARGE),
    "decode, scatter_elements": decoding("scatter_elements", LARGE),
}


def turn_us(run: Callable[[Feeds], object], case: Case) -> float:
    """Return microseconds a turn: the slope, each end the least of three runs."""
    ends = []
    for turns in (case.few, case.many):
        fed = case.feeds(turns)
        ends.append(min(seconds_of(partial(run, fed)) for _ in range(3)))
    return (ends[1] - ends[0]) / (case.many - case.few) * 1e6


def measure(case: Case, rounds: int) -> tuple[float, float, float]:
    """Return our microseconds a turn, ONNX Runtime's, and the median ratio of theirs to ours."""
    model = case.model
    if isinstance(model, str):
        model = parser.parse_model(HEAD + model).SerializeToString()
    peer = onnx_session(model)

    def theirs(fed: Feeds) -> object:
        return peer.run(None, fed)

    with Session(model, threads=1) as session:
        for turns in (case.few, case.many):
            found, wanted = session.run(case.feeds(turns)), theirs(case.feeds(turns))
            for one, other in zip(found.values(), wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
        pairs = [(turn_us(session.run, case), turn_us(theirs, case)) for _ in range(rounds)]
    ratios = [other / max(ours, LEAST_US) for ours, other in pairs]
    mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    return mine, other, statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(f"{'':22} {'us a turn':>10} {'ORT':>9} {'ratio':>7}")
    for name in options.cases or CASES:
        case = CASES[name]
        mine, other, ratio = measure(case, options.rounds)
        holds = ratio >= case.bar and (case.most_us is None or mine <= case.most_us)
        bars = f"bar {case.bar:g}x" + ("" if case.most_us is None else f", {case.most_us:g} us")
        row = f"{name:22} {mine:10.3f} {other:9.3f} {ratio:6.2f}x  {bars}"
        print(row if holds else f"{row}  MISSED")


if __name__ == "__main__":
    main()
