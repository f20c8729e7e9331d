"""Loops that end late or never: typed errors that name the node, at load where that is certain."""

import numpy as np
import pytest
from onnx import parser
from programs import HEAD, NESTED, UNTIL, f32

from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import CompileError, RunError

FOREVER = """
forever ({inputs} float[3] x) => (float[3] y)
{{
    y = Loop ({trips}, {start}, x) <body = turn
        (int64 i, bool going, float[3] s) => (bool more, float[3] t)
        {{ more = Identity(going)  t = Mul(s, x) }}
    >
}}
"""
NEVER = {"limit": np.array(np.inf, np.float32), "start": np.array(True), "x": f32(0, 0, 0)}


def model(**parts):
    return parser.parse_model(HEAD + FOREVER.format(**parts)).SerializeToString()


def test_a_loop_that_nothing_ends_is_refused_at_load():
    with pytest.raises(CompileError, match=r"loop #0 \(onnx:Loop_0\) has no end: it has no trip"):
        Session(model(inputs="", trips="", start=""))


def test_a_loop_that_nothing_ends_is_refused_when_it_begins():
    with Session(model(inputs="bool c,", trips="", start="c")) as session:
        x = f32(1, 2, 3)
        np.testing.assert_array_equal(session.run({"c": np.array(False), "x": x})["y"], x)
        with pytest.raises(RunError, match="has no end"):
            session.run({"c": np.array(True), "x": x})


def test_a_native_loop_ends_at_its_timeout_and_runs_again():
    how = ExecutionOptions(timeout_s=0.1)
    with Session(UNTIL.model(), execution_options=how) as session:
        with pytest.raises(RunError, match=r"did not end within 0.1 s: [\d,]+ turns are done"):
            session.run(NEVER)
        again = NEVER | {"limit": np.array(100, np.float32), "x": f32(1, 2, 3)}
        np.testing.assert_array_equal(session.run(again)["y"], f32(64, 128, 192))


def test_a_driven_loop_ends_at_its_timeout():
    feeds = {"n": np.array(1 << 40), "m": np.array(3), "x": f32(1, 2, 3)}
    how = ExecutionOptions(timeout_s=0.1)
    with (
        Session(NESTED.model(), execution_options=how) as session,
        pytest.raises(RunError, match=r"loop #0 .* did not end within 0.1 s"),
    ):
        session.run(feeds)
