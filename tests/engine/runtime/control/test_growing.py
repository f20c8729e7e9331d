"""Carried values that turns make longer, against ONNX Runtime."""

import numpy as np
import pytest
from onnx import parser
from programs import HEAD, peer

from trireme.ir.graph import Node
from trireme.model_file.convert import convert
from trireme.ops.repeats import repeat_of
from trireme.passes.appended import Appended, appended_states, rows_for
from trireme.runtime.control.bodies import Bodies
from trireme.runtime.control.dynamic import ControlFlow
from trireme.runtime.control.growing import FIRST_ROOM, GrowingArray, joined
from trireme.runtime.control.growing_loop import GrowingLoop
from trireme.runtime.control.open_loop import OpenBody, OpenLoop
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

TEXT = """
grows (int64 n, float stop, float[{x}] x, float[{w}] w) => (float[{y}] y{outer})
{{
    one = Constant <value = int64[1] {{1}}> ()
    zero = Constant <value = int64[1] {{0}}> ()
    {head}
    y{names} = Loop (n, , x{first}) <body = turn
        (int64 i, bool going, float[{s}] s{given}) => (bool more, float[{t}] t{made})
        {{ {step}  {more} }}
    >
}}
"""
GO_ON = "more = Identity(going)"


def model(step, *, more=GO_ON, x="k,3", s="a,3", w="j,3", head="", **ends):
    """The bytes of a loop that carries s."""
    parts = {"outer": "", "names": "", "first": "", "given": "", "made": "", **ends}
    y, t = s.replace("a", "m"), s.replace("a", "b")
    text = TEXT.format(step=step, more=more, x=x, s=s, w=w, y=y, t=t, head=head, **parts)
    return parser.parse_model(HEAD + text).SerializeToString()


READ = "least = ReduceMin <keepdims = 0> (s)  scaled = Mul(least, w)  t = Concat <axis = 0> (s, {})"
MODELS = {
    "unread": model("t = Concat <axis = 0> (s, w)"),
    "unread, two parts": model("u = Neg(w)  t = Concat <axis = 0> (s, u, w)"),
    "unread, other axis": model("t = Concat <axis = -1> (s, w)", x="3,k", s="3,a", w="3,j"),
    "unread, part of a turn": model(
        "f = Cast <to = 1> (i)  u = Mul(w, f)  t = Concat <axis = 0> (s, u)"
    ),
    "unread, parts of unlike length": model(
        "at = Unsqueeze(i, zero)  size = Div(at, two)  ends = Concat <axis = 0> (size, three)"
        "u = Expand(last, ends)  t = Concat <axis = 0> (s, u)",
        head="two = Constant <value = int64[1] {2}> ()  three = Constant <value = int64[1] {3}> ()"
        "last = Constant <value = float[1,3] {1, 2, 3}> ()",
    ),
    "read": model(READ.format("scaled")),
    "read, two parts": model(READ.format("w, scaled")),
    "read, other axis": model(
        "least = ReduceMin <keepdims = 0> (s)  u = Mul(least, w)  t = Concat <axis = 1> (s, u)",
        x="3,k",
        s="3,a",
        w="3,j",
    ),
    "part before": model("t = Concat <axis = 0> (w, s)"),
    "longer value read": model(
        "t = Concat <axis = 0> (s, w)  row = ReduceMax <keepdims = 0> (t)",
        outer=", float[turns] rows",
        names=", rows",
        made=", float row",
    ),
    "itself": model("h = Slice(s, zero, one)  t = Concat <axis = 0> (s, h)"),
    "ended by data": model(
        "t = Concat <axis = 0> (s, w)  f = Cast <to = 1> (i)", more="more = Less(f, stop)"
    ),
    "two states": model(
        "t = Concat <axis = 0> (s, w)  u = Neg(w)  p = Concat <axis = 0> (o, u)"
        "both = Add(s, o)  row = ReduceMax <keepdims = 0> (both)",
        first=", x",
        names=", z, rows",
        given=", float[c,3] o",
        made=", float[d,3] p, float row",
        outer=", float[e,3] z, float[turns] rows",
    ),
    "one read and one unread": model(
        "t = Concat <axis = 0> (s, w)  high = ReduceMax <keepdims = 0> (o)  u = Mul(w, high)"
        "p = Concat <axis = 0> (o, u)",
        first=", x",
        names=", z",
        given=", float[c,3] o",
        made=", float[d,3] p",
        outer=", float[e,3] z",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_values_that_grow_equal_onnx_runtime(name, tmp_path):
    seed = 14
    rng, data = np.random.default_rng(seed), MODELS[name]
    path = tmp_path / "grows.onnx"
    path.write_bytes(data)
    across = "other axis" in name
    with Session(data) as of_bytes, Session(path) as of_path:
        for turns in (0, 1, 2, 3, FIRST_ROOM + 1, 40, 300):
            if name == "itself" and turns > 40:
                continue
            k, j = int(rng.integers(1, 5)), int(rng.integers(1, 3))
            x, w = (rng.uniform(0.1, 1, (n, 3)).astype(np.float32) for n in (k, j))
            feeds = {
                "n": np.array(turns),
                "stop": np.array(turns // 2, np.float32),
                "x": np.ascontiguousarray(x.T) if across else x,
                "w": np.ascontiguousarray(w.T) if across else w,
            }
            wanted = peer(data, feeds)
            for session in (of_bytes, of_path):
                found = session.run(feeds)
                for output, right in wanted.items():
                    assert found[output].dtype == right.dtype
                    np.testing.assert_allclose(
                        found[output], right, rtol=1e-4, err_msg=f"seed {seed}, {turns} turns"
                    )


ATTENTION = """
q = Transpose <perm = [1, 0]> (w)  scores = MatMul(s, q)
shares = Softmax <axis = 0> (scores)  turned = Transpose <perm = [1, 0]> (shares)
mixed = MatMul(turned, s)  new = Add(mixed, w)  t = Concat <axis = 0> (s, new)
"""


@pytest.mark.parametrize("native", [True, False])
def test_a_body_with_much_work_is_compiled_once_for_all_turns(native, workshop_flow, monkeypatch):
    if not native:
        monkeypatch.setattr(Bodies, "growing", lambda *_: None)
    data = model(ATTENTION, x="k,256", s="a,256", w="1,256")
    rng = np.random.default_rng(3)
    flow, run = workshop_flow(data)
    for rows, turns in ((900, 5), (700, 30), (1, 3)):
        x = rng.standard_normal((rows, 256)).astype(np.float32) / 16
        feeds = {"n": np.array(turns), "stop": np.array(0, np.float32), "x": x, "w": x[:1]}
        np.testing.assert_allclose(run(feeds), peer(data, feeds)["y"], rtol=1e-3, atol=1e-5)
    compiled = [use for use in flow.uses if isinstance(use.body, OpenBody | GrowingLoop)]
    assert [use.runs for use in compiled] == [2 if native else 35]


def test_turns_that_only_append_run_in_native_code(workshop_flow):
    data = MODELS["unread"]
    flow, run = workshop_flow(data)
    x = np.ones((2, 3), np.float32)
    run({"n": np.array(300), "stop": np.array(0, np.float32), "x": x, "w": x})
    assert any(isinstance(use.body, OpenLoop) for use in flow.uses)


@pytest.fixture
def workshop_flow(monkeypatch):
    """Makes a session of a model; its control flow, and what runs it."""
    made, sessions = [], []
    plain = ControlFlow.__init__

    def noted(self, *given):
        plain(self, *given)
        made.append(self)

    monkeypatch.setattr(ControlFlow, "__init__", noted)

    def opened(data):
        sessions.append(Session(data))
        return made[-1], lambda feeds: sessions[-1].run(feeds)["y"]

    yield opened
    for session in sessions:
        session.close()


def forms(name):
    """The loop of a model as it is written, with parts, and with rows."""
    (loop,) = [node for node in convert(MODELS[name]).nodes if node.op == "loop"]
    form = repeat_of(loop.attrs)
    parts, appended = appended_states(form)
    return form, parts, appended, *rows_for(parts, appended)


def test_what_a_turn_appends_is_seen():
    for name, axis, unread in (
        ("unread", 0, True),
        ("unread, other axis", 1, True),
        ("unread, two parts", 0, True),
        ("read", 0, False),
        ("itself", 0, False),
    ):
        form, parts, appended, rows, gone = forms(name)
        assert appended == (Appended(0, axis),)
        assert gone == (appended if unread else ())
        assert rows.carried == form.carried - len(gone) and parts.carried == form.carried
        assert len(rows.rows) == len(form.rows) + len(gone)
    for name in ("part before", "longer value read"):
        form, parts, appended, rows, gone = forms(name)
        assert (parts, rows, appended, gone) == (form, form, (), ())


def test_an_array_grows_where_it_is():
    node = Node(0, "loop", (), (), {}, "onnx:Loop_3")
    for axis in (0, 1, 2):
        first = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
        grown, want, views = GrowingArray(node, first, axis), first, []
        for k in range(50):
            part = np.full([1 if a == axis else 2 for a in range(3)], k, np.float32)
            want = np.concatenate((want, part), axis)
            views.append((grown.append(part), want))
        for view, right in views:
            np.testing.assert_array_equal(view, right)


@pytest.mark.parametrize("parts", [[np.zeros((1, 4))], np.zeros((2, 1, 4))])
def test_parts_that_do_not_fit_are_refused(parts):
    node = Node(0, "loop", (), (), {}, "onnx:Loop_3")
    want = r"Loop_3.*a turn appends \[\d, 4\] to \[2, 3\] along axis 0"
    with pytest.raises(RunError, match=want):
        joined(node, np.zeros((2, 3)), parts, 0)
    with pytest.raises(RunError, match=want):
        GrowingArray(node, np.zeros((2, 3)), 0).append(np.zeros((1, 4)))
