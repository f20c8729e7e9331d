"""Sizes that exporters compute: one program serves every shape, and agrees with ONNX Runtime."""

import random

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from trireme import Session

BODIES = {
    # torch.arange(w, dtype=torch.float32)
    "range of floats": """
        f = Cast <to: int = 1> (w)  at = Range (fzero, f, fone)  y = Add (x, at)""",
    "range of float arithmetic": """
        f = Cast <to: int = 1> (w)  two = Mul (f, ftwo)  less = Sub (two, fone)
        all = Add (less, fone)  end = Floor (all)  at = Range (fzero, end, fone)
        z = Concat <axis = 1> (x, x)  y = Add (z, at)""",
    "float size back to integers": """
        f = Cast <to: int = 1> (w)  two = Mul (f, ftwo)  i = Cast <to: int = 7> (two)
        i1 = Unsqueeze (i, zero1)  to = Concat <axis = 0> (hv, i1)
        z = Concat <axis = 1> (x, x)  y = Reshape (z, to)""",
    # F.pad(x, (0, -w % 7))
    "pad to whole windows": """
        left = Mod (wv, seven)  room = Sub (seven, left)  more = Mod (room, seven)
        to = Concat <axis = 0> (zero1, zero1, zero1, more)  p = Pad (x, to)
        t = Concat <axis = 0> (hv, neg1, seven)  y = Reshape (p, t)""",
    "pad, and back to the size": """
        n = Neg (wv)  more = Mod (n, seven)
        to = Concat <axis = 0> (zero1, zero1, zero1, more)  p = Pad (x, to)
        r = Relu (p)  back = Slice (r, zero1, wv, one1)  y = Add (x, back)""",
    # torch.roll(x, shift, 1)
    "roll left": """
        k = Mod (three, wv)  a = Slice (x, zero1, k, one1)  b = Slice (x, k, wv, one1)
        c = Concat <axis = 1> (b, a)  y = Mul (c, ftwo)""",
    "roll right": """
        k = Mod (minus3, wv)  a = Slice (x, zero1, k, one1)  b = Slice (x, k, wv, one1)
        c = Concat <axis = 1> (b, a)  y = Mul (c, ftwo)""",
    "roll by one": """
        k = Mod (one1, wv)  a = Slice (x, zero1, k, one1)  b = Slice (x, k, wv, one1)
        c = Concat <axis = 1> (b, a)  y = Mul (c, ftwo)""",
    "every second column": """
        a = Slice (x, one1, wv, one1, two1)  y = Relu (a)""",
    "every third column from the end": """
        a = Slice (x, minus4, far, one1, three)  y = Relu (a)""",
    "flip": """
        a = Slice (x, neg1, ends, one1, neg1)  y = Relu (a)""",
    "remainder with the sign of the dividend": """
        k = Mod <fmod = 1> (wv, three)  a = Slice (x, k, far, one1)  y = Relu (a)""",
    "a quotient below 0": """
        n = Neg (wv)  k = Div (n, three)  m = Neg (k)  a = Slice (x, zero1, m, one1)
        y = Relu (a)""",
}
LEAST = {
    "roll left": 4,
    "roll right": 4,
    "every second column": 2,
    "remainder with the sign of the dividend": 4,
    "a quotient below 0": 3,
}
"""The least width, where one program has another or an empty tensor below; else 1."""
WEIGHTS = """
    int64[1] zero1 = {0}, int64[1] one1 = {1}, int64[1] two1 = {2}, int64[1] three = {3},
    int64[1] seven = {7}, int64[1] neg1 = {-1}, int64[1] minus3 = {-3}, int64[1] minus4 = {-4},
    int64[1] far = {9223372036854775807}, int64[1] ends = {-9223372036854775807},
    float fzero = {0}, float fone = {1}, float ftwo = {2}"""


def model(name):
    text = f"""
        <ir_version: 10, opset_import: ["": 18]>
        g (float[h,w] x) => (float[] y) <{WEIGHTS}> {{
            hv = Shape <start = 0, end = 1> (x)  wv = Shape <start = 1, end = 2> (x)
            w = Squeeze (wv)  {BODIES[name]}
        }}"""
    made = parser.parse_model(text)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made.SerializeToString()


@pytest.mark.parametrize("name", BODIES)
def test_one_program_serves_sizes_that_are_computed(name):
    print("seed", name)
    rng, least = random.Random(name), LEAST.get(name, 1)
    data = model(name)
    other = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    shapes = {"x": ["1<=h<=40", f"{least}<=w<=200"]}
    with Session(data, shapes=shapes, devices=["cpu"]) as session:
        for _ in range(25):
            h, w = rng.randint(1, 40), rng.randint(least, rng.choice((least + 4, 200)))
            x = np.random.default_rng(h * w).standard_normal((h, w)).astype(np.float32)
            (wanted,) = other.run(None, {"x": x})
            found = session.run({"x": x})["y"]
            np.testing.assert_array_equal(found, wanted, f"{name} at {h} x {w}")
            assert [stage.tier for stage in session.stages] == ["polymorphic"], session.stages[0]
