"""Reports reach into bodies: the summary, the pages, the JSON and the generated code."""

import json
from contextlib import closing

import numpy as np
import pytest
from onnx import parser
from programs import BRANCH, COUNTED, DATA, GROWING, HEAD, NESTED, f32

from trireme.backend.registry import open_device
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.explain import explain
from trireme.runtime.session.session import Session


def test_the_summary_has_a_line_for_each_body():
    with Session(NESTED.model()) as session:
        text = str(session.placement)
        assert "cpu       runs bodies of control flow, and no other node" in text
        assert "  body of loop 'y': " in text and " a turn, 1 nodes on cpu, 1 nodes on host" in text
    with Session(BRANCH.model()) as session:
        text = str(session.placement)
        assert "then_branch of if 'y'" in text and "else_branch of if 'y'" in text


def test_explain_says_why_the_host_drives_the_turns_of_a_body():
    with Session(NESTED.model()) as session:
        page = explain(session.placement).pages()
        for inner in ("loop #0 (onnx:Loop_1)", "if #1 (onnx:If_2)"):
            why = f"the host drives its turns: {inner}: the host drives control flow, placed"
            assert why in page
    with Session(COUNTED.model()) as session:
        page = explain(session.placement).pages()
        assert "  body: " in page and "the host drives its turns" not in page


def test_pages_of_bodies_stand_below_their_node():
    with Session(NESTED.model()) as session:
        page = explain(session.placement).pages()
        lines = page.split("\n")
        depth = {
            line.split()[0]: len(line) - len(line.lstrip())
            for line in lines
            if line.split()[0] in ("equal", "sub", "tanh")
        }
        assert depth == {"equal": 8, "sub": 12, "tanh": 12}
        assert "then_branch: " in page and "placed by itself" in page
        data = json.loads(json.dumps(explain(session.placement).to_json(), default=str))
        (loop,) = data["nodes"]
        inner = loop["bodies"]["body"]["nodes"]
        assert [node["op"] for node in inner] == ["loop", "add"]
        (row,) = session.placement.to_json()["nodes"]
        assert row["bodies"]["body"]["nodes"][0]["bodies"]["body"]["nodes"][1]["op"] == "if"


@pytest.mark.parametrize("form", ["ir", "asm"])
def test_code_of_bodies_is_listed(form):
    with Session(COUNTED.model()) as session:
        (name, *_) = listed = session.kernels(form)
        assert name.startswith("loop0.body.") and all(listed.values())
    with Session(NESTED.model()) as session:
        names = session.kernels(form)
        assert any(name.startswith("loop0.body.loop0.body.if1.then_branch.") for name in names)


def test_stages_say_which_bodies_of_a_run_are_not_compiled_and_why():
    with Session(GROWING.model()) as session:
        for turns in (0, 3, 0):
            session.run({"n": np.array(turns), "x": f32(1, 2)})
            (stage,) = session.stages
            why = "body 'turn': numpy runs it: its types vary, and it has little work"
            assert stage.fallbacks == ((why,) if turns else ())
            assert (why in str(stage)) == bool(turns)


def test_a_body_that_numpy_runs_says_why():
    with Session(DATA.model(), shapes={"x": (4,)}) as session:
        assert session.run(DATA.feeds[0]) == {"y": 13}
        assert "body of loop 'y': numpy runs it: " in str(session.placement)
        (why,) = session.placement.unplaced.values()
        assert "is not known before it runs" in why


def test_turns_price_a_loop():
    def predicted(turns):
        b, inner = GraphBuilder("g"), GraphBuilder("body")
        type = TensorType((64, 64), "float32")
        inner.input("i", TensorType((), "int64"))
        on, s = inner.input("on", TensorType((), "bool")), inner.input("s", type)
        body = inner.finish(on, inner.add("matmul", s, s))
        y = b.add("loop", turns(b), None, b.input("x", type), body=body, carried=1)
        with Session(b.finish(y)) as session:
            (choice,) = session.placement.choices.values()
            return choice.estimates["host"]

    known = [predicted(lambda b, n=n: b.constant("n", f32(n).astype("int64")[0])) for n in (10, 40)]
    assert known[1].seconds == pytest.approx(4 * known[0].seconds)
    unknown = predicted(lambda b: b.input("n", TensorType((), "int64")))
    assert unknown.source == "assumed" and unknown.seconds == pytest.approx(known[0].seconds)
    assert unknown.high_s > 5 * unknown.seconds


def rows(profile):
    """The kernels of bodies of a profile: path, label, turns."""
    return {
        (*one.path, one.label.split()[0]): one for spans in profile.bodies.values() for one in spans
    }


def test_a_profile_reaches_into_bodies():
    with Session(NESTED.model()) as session:
        profile = session.profile(NESTED.feeds[3], runs=3)
        found = rows(profile)
        inner = ("body", "loop #0 (onnx:Loop_1)", "body")
        assert found[*inner, "equal"].turns == 20
        assert found[*inner, "if #1 (onnx:If_2)", "then_branch", "sub"].turns == 4
        assert found[*inner, "if #1 (onnx:If_2)", "else_branch", "tanh+add"].turns == 16
        assert all(one.seconds > 0 and one.estimate_s > 0 for one in found.values())
        assert "body / loop #0 (onnx:Loop_1) / body / equal (onnx:Equal_1)" in str(profile)
        (node,) = json.loads(json.dumps(profile.to_json(), default=str))["nodes"]
        assert len(node["bodies"]) == len(found)


def test_a_profile_counts_the_turns_of_native_loops():
    with Session(COUNTED.model()) as session:
        for feeds, turns in zip(COUNTED.feeds, (0, 1, 5, 0), strict=True):
            found = rows(session.profile(feeds, runs=2))
            assert {one.turns for one in found.values()} == ({turns} if turns else set())
        again = session.run(COUNTED.feeds[2])
        session.profile(COUNTED.feeds[2], runs=2)
        for name, array in session.run(COUNTED.feeds[2]).items():
            assert array.tobytes() == again[name].tobytes()


SUNK = """
sunk (int64 n, float[{size},{size}] x, float[{size},{size}] w) => (float[{size},{size}] y)
{{
    y = Loop (n, , x) <body = turn
        (int64 i, bool going, float[{size},{size}] s) => (bool more, float[{size},{size}] t)
        {{ more = Identity(going)  h = MatMul(s, w)  t = Relu(h) }}
    >
}}
"""
REASONS = {
    "cpu": "the host drives control flow: cpu compiles no loop",
    "opencl": "the host drives control flow: opencl compiles no loop",
    "npu": "control flow stays on the host: attributes may not hold graphs (here body)",
}


@pytest.mark.parametrize("device", REASONS)
def test_explain_says_why_a_loop_is_not_sunk_and_that_its_body_is(device):
    model = parser.parse_model(HEAD + SUNK.format(size=256)).SerializeToString()
    options = {"float32": "float16"} if device == "npu" else {}
    with (
        closing(open_device(device, **options)) as opened,
        Session(model, devices=[opened]) as session,
    ):
        page = explain(session.placement).pages()
        (loop,) = explain(session.placement).to_json()["nodes"]
        assert REASONS[device] in page
        assert "no other device can run it (assumed; the host drives control flow)" in page
        assert {node["device"] for node in loop["bodies"]["body"]["nodes"]} == {device}
        why = f"; the host drives its turns: values are copied to and from {device}"
        why = "" if device == "cpu" else why
        assert f"2 nodes on {device}{why}, placed by itself" in page
        (driver,) = (
            d
            for call in session.ready.latest().calls
            for d in getattr(call, "drivers", {}).values()
        )
        tasks = [task for task in driver.bound.contexts[0].program.plan.tasks if not task.is_copy]
        assert [(task.device, len(task.nodes)) for task in tasks] == [(device, 2)]
