"""ONNX programs with control flow as text, and what ONNX Runtime answers."""

from dataclasses import dataclass, field

import numpy as np
import onnxruntime
from onnx import parser

HEAD = '<ir_version: 10, opset_import: ["" : 22]>\n'


@dataclass(frozen=True)
class Program:
    """A model in ONNX's text form, and inputs that take different ways through it."""

    name: str
    text: str
    feeds: tuple[dict[str, object], ...]
    weights: dict[str, object] = field(default_factory=dict)

    def model(self) -> bytes:
        """Return the bytes of the model."""
        return parser.parse_model(HEAD + self.text).SerializeToString()


def peer(model, feeds):
    """Return the outputs of ONNX Runtime by name."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options)
    names = [out.name for out in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def f32(*values, shape=None):
    """Return an array of float32."""
    array = np.array(values, np.float32)
    return array if shape is None else np.resize(array, shape)


BRANCH = Program(
    "branch",
    """
branch (bool c, float[3] x) => (float[3] y)
{
    h = Neg(x)
    y = If (c) <
        then_branch = one () => (float[3] t) { u = Tanh(h)  t = Add(u, x) },
        else_branch = two () => (float[3] e) { e = Mul(h, h) }
    >
}
""",
    tuple({"c": np.array(c), "x": f32(1, -2, 0.5)} for c in (True, False)),
)

COUNTED = Program(
    "counted",
    """
counted (int64 n, float[2,3] x, float[3] w) => (float[2,3] y, int64 last)
{
    zero = Constant <value = int64 {0}> ()
    y, last = Loop (n, , x, zero) <body = turn
        (int64 i, bool going, float[2,3] s, int64 k) => (bool more, float[2,3] t, int64 k2)
        {
            more = Identity(going)
            a = Mul(s, w)
            t = Add(a, x)
            k2 = Add(k, i)
        }
    >
}
""",
    tuple(
        {"n": np.array(n), "x": f32(1, -2, 0.5, shape=(2, 3)), "w": f32(0.5, 0.25, -1)}
        for n in (0, 1, 5, -3)
    ),
)

UNTIL = Program(
    "until",
    """
until (float limit, bool start, float[3] x) => (float[3] y)
{
    y = Loop (, start, x) <body = turn
        (int64 i, bool going, float[3] s) => (bool more, float[3] t)
        {
            t = Add(s, s)
            m = ReduceMax <keepdims = 0> (t)
            more = Less(m, limit)
        }
    >
}
""",
    tuple(
        {"limit": np.array(at, np.float32), "start": np.array(start), "x": f32(1, 2, 3)}
        for at, start in ((100, True), (1, True), (100, False))
    ),
)

KEPT = Program(
    "kept",
    """
kept (float[3] x) => (float[3] y, float[9,3] all, int64[9] turns)
{
    nine = Constant <value = int64 {9}> ()
    true = Constant <value = bool {1}> ()
    y, all, turns = Loop (nine, true, x) <body = turn
        (int64 i, bool going, float[3] s) => (bool more, float[3] t, float[3] seen, int64 at)
        {
            more = Constant <value = bool {1}> ()
            t = Add(s, x)
            seen = Mul(t, t)
            at = Identity(i)
        }
    >
}
""",
    ({"x": f32(1, -2, 0.5)},),
)

NESTED = Program(
    "nested",
    """
nested (int64 n, int64 m, float[3] x) => (float[3] y)
{
    y = Loop (n, , x) <body = outer
        (int64 i, bool going, float[3] s) => (bool more, float[3] t)
        {
            more = Identity(going)
            inner = Loop (m, , s) <body = rows
                (int64 j, bool on, float[3] a) => (bool on2, float[3] b)
                {
                    on2 = Identity(on)
                    odd = Equal(i, j)
                    b = If (odd) <
                        then_branch = one () => (float[3] p) { p = Sub(a, x) },
                        else_branch = two () => (float[3] q) { h = Tanh(a)  q = Add(h, x) }
                    >
                }
            >
            t = Add(inner, x)
        }
    >
}
""",
    tuple(
        {"n": np.array(n), "m": np.array(m), "x": f32(1, -2, 0.5)}
        for n, m in ((3, 2), (0, 2), (2, 0), (4, 5))
    ),
)

STEPS = Program(
    "steps",
    """
steps (float[3] h0, float[2000,3] xs, float[3] w) => (float[3] h, float[2000,3] all)
{
    h, all = Scan (h0, xs) <num_scan_inputs = 1, body = step
        (float[3] s, float[3] x) => (float[3] t, float[3] seen)
        {
            a = Mul(s, w)
            b = Add(a, x)
            t = Tanh(b)
            seen = Identity(t)
        }
    >
}
""",
    (
        {
            "h0": f32(0, 0, 0),
            "xs": np.sin(np.arange(6000, dtype=np.float32)).reshape(2000, 3),
            "w": f32(0.5, 0.25, -1),
        },
    ),
)

PROGRAMS = (BRANCH, COUNTED, UNTIL, KEPT, NESTED, STEPS)

GROWING = Program(
    "growing",
    """
growing (int64 n, float[k] x) => (float[m] y)
{
    y = Loop (n, , x) <body = turn
        (int64 i, bool going, float[a] s) => (bool more, float[b] t)
        {
            more = Identity(going)
            h = Neg(s)
            t = Concat <axis = 0> (h, x)
        }
    >
}
""",
    tuple(
        {"n": np.array(n), "x": np.arange(k, dtype=np.float32)} for n, k in ((0, 2), (3, 2), (9, 1))
    ),
)

UNEQUAL = Program(
    "unequal",
    """
unequal (bool c, float[k] x) => (float[m] y)
{
    y = If (c) <
        then_branch = one () => (float[p] t) { t = Concat <axis = 0> (x, x) },
        else_branch = two () => (float[q] e) { e = Neg(x) }
    >
}
""",
    tuple(
        {"c": np.array(c), "x": np.arange(k, dtype=np.float32)}
        for c in (0 < 1, 1 < 0)
        for k in (1, 4)
    ),
)

COLLECTED = Program(
    "collected",
    """
collected (int64 n, float limit, float[3] x) => (float[3] y, float[m,3] all)
{
    true = Constant <value = bool {1}> ()
    y, all = Loop (n, true, x) <body = turn
        (int64 i, bool going, float[3] s) => (bool more, float[3] t, float[3] seen)
        {
            t = Add(s, x)
            seen = Mul(t, t)
            m = ReduceMax <keepdims = 0> (t)
            more = Less(m, limit)
        }
    >
}
""",
    tuple(
        {"n": np.array(n), "limit": np.array(at, np.float32), "x": f32(1, -2, 0.5)}
        for n, at in ((100, 7.5), (4, 100), (0, 1))
    ),
)

DATA = Program(
    "data",
    """
data (int64 n, float[k] x) => (int64 y)
{
    zero = Constant <value = int64 {0}> ()
    y = Loop (n, , zero) <body = turn
        (int64 i, bool going, int64 s) => (bool more, int64 t)
        {
            more = Identity(going)
            f = Cast <to = 1> (i)
            d = Greater(x, f)
            at = NonZero(d)
            z = Size(at)
            t = Add(s, z)
        }
    >
}
""",
    ({"n": np.array(5), "x": f32(0.5, 3.5, 2.5, 9)},),
)

VARYING = (GROWING, UNEQUAL, COLLECTED, DATA)
"""Programs whose shapes depend on what they are given."""
