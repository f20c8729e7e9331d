"""Shapes that fit their inputs but not each other: the error names the sizes to change."""

import numpy as np
import pytest
from onnx import parser

import trireme
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError, TriremeError

HEAD = '<ir_version: 10, opset_import: ["" : 22]>'
ONES = np.ones((12, 12), np.float32)
CASES = {
    "broadcast": (
        "m (float[a] x, float[b] y) => (float[c] z) { s = Add(x, y) z = Relu(s) }",
        {"x": (3,), "y": (4,)},
        "a=3 (of x) or b=4 (of y)",
        {"y": (3,)},
    ),
    "inner axes": (
        "m (float[4, a] x, float[b, 5] y) => (float[4, 5] z) { z = MatMul(x, y) }",
        {"x": (4, 3), "y": (4, 5)},
        "a=3 (of x) or b=4 (of y)",
        {"y": (3, 5)},
    ),
    "joined": (
        "m (float[n, a] x, float[n, b] y) => (float[c, d] z) { z = Concat<axis = 0>(x, y) }",
        {"x": (2, 3), "y": (2, 4)},
        "n=2 (of x, y) or a=3 (of x) or b=4 (of y)",
        {"x": (2, 4)},
    ),
    "no name": (
        "m (float[N, ?] x, float[4] y) => (float[N, 4] z) { z = Add(x, y) }",
        {"x": (2, 3), "y": (4,)},
        "N=2 (of x) or x_1=3 (of x)",
        {"x": (2, 4)},
    ),
    "a branch": (
        """m (bool which, float[n] x) => (float[k] z) {
            z = If (which) <
                then_branch = wide () => (float[k] v) {
                    four = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>() v = Add(x, four)
                },
                else_branch = narrow () => (float[l] t) {
                    two = Constant<value_floats = [1.0, 2.0]>() t = Add(x, two)
                }
            >
        }""",
        {"which": (), "x": (2,)},
        "n=2 (of x)",
        {"x": (4,)},
    ),
}


def arrays(shapes):
    return {
        name: ONES.reshape(-1)[: int(np.prod(shape))].reshape(shape) if shape else np.array(True)
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("form", ["bytes", "graph"])
@pytest.mark.parametrize("name", CASES)
def test_a_run_names_the_sizes_to_change(name, form):
    text, shapes, sizes, fitting = CASES[name]
    model = parser.parse_model(HEAD + text).SerializeToString()
    with Session(model if form == "bytes" else trireme.convert(model)) as session:
        for _ in range(2):
            with pytest.raises(RunError) as caught:
                session.run(arrays(shapes))
            assert caught.value.fix == f"give other sizes than {sizes}"
            assert f"x {list(shapes['x'])}" in str(caught.value)
        session.run(arrays(shapes | fitting))


@pytest.mark.parametrize("name", sorted(set(CASES) - {"a branch"}))
def test_a_session_of_such_shapes_names_them(name, tmp_path):
    text, shapes, sizes, fitting = CASES[name]
    model = parser.parse_model(HEAD + text).SerializeToString()
    trireme.save(trireme.convert(model), tmp_path / "m.trm")
    for source in (model, tmp_path / "m.trm", trireme.convert(model)):
        with pytest.raises(TriremeError) as caught:
            Session(source, shapes=shapes)
        assert caught.value.fix == f"give other sizes than {sizes}"
        Session(source, shapes=shapes | fitting).close()


@pytest.mark.parametrize(
    ("shapes", "fix"),
    [
        ({"x": (5, 3)}, "only dimensions that are not numbers can be given"),
        ({"x": (4, 3, 2)}, "give the inputs' shapes, e.g. --shape x=4,16"),
        ({"q": (4, 3)}, "give the shape of one of these"),
        ({"x": (4, -1)}, "only dimensions that are not numbers can be given"),
    ],
)
def test_shapes_that_the_inputs_refuse(shapes, fix):
    model = parser.parse_model(HEAD + CASES["inner axes"][0]).SerializeToString()
    for source in (model, trireme.convert(model)):
        with pytest.raises(TriremeError) as caught:
            Session(source, shapes=shapes)
        assert caught.value.fix.startswith(fix)
