"""trireme.capture against plain Python: small programs, on random arguments."""

import bad_programs
import numpy as np
import pytest
import small_programs
from bad_programs import BAD
from python_meaning import MEANING
from same_as_python import expect_same, flat, in_python
from small_programs import PROGRAMS

import trireme
from trireme import eager
from trireme.ir.graph import Graph, TensorType

SEED = 20
PROGRAMS = PROGRAMS | dict.fromkeys(MEANING, (lambda rng: rng.uniform(-4, 4, 4).astype("f4"),))
by_name = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


def draws(program, count=12):
    rng = np.random.default_rng([SEED, len(program.__name__)])
    return [[draw(rng) for draw in PROGRAMS[program]] for _ in range(count)]


@by_name
def test_a_program_gives_what_python_gives(program):
    cases = draws(program)
    captured = trireme.capture(program, *cases[0])
    graph = captured.graph()
    for case in cases:
        expect_same(captured(*case), in_python(program, case), case)
    assert captured.graph() is graph, "one graph serves all arguments of these types"


@by_name
def test_a_session_gives_what_python_gives(program):
    cases = draws(program, 3)
    graph = trireme.capture(program, *cases[0]).graph()
    names = [value.name for value in graph.input_values()]
    with trireme.Session(graph) as session:
        for case in cases:
            feeds = dict(zip(names, map(np.asarray, case), strict=True))
            made = session.run(feeds)
            got = [made[graph.values[value].name] for value in graph.outputs]
            expect_same(got, in_python(program, case), case)


@by_name
def test_the_source_runs_and_gives_the_same(program):
    """The text of what was understood is Python, here over eager tensors on the host."""
    case = draws(program, 1)[0]
    captured = trireme.capture(program, *case)
    constants = {one.name or "weights": one.data for one in captured.graph().values.values()}
    names = {"np": np, "eager": HostEager(), "constants": constants}
    exec(captured.source(), names)
    tensors = [eager.Tensor(np.asarray(one), tensor_type(one), "host") for one in case]
    made = names[program.__name__](*tensors)
    got = [np.asarray(one) for one in (made if isinstance(made, tuple) else (made,))]
    expect_same(
        [one.astype(np.float64) for one in got], as_float(in_python(program, case)), case, 1e-5
    )


def as_float(value):
    return [one.astype(np.float64) for one in flat(value)]


def tensor_type(value):
    return TensorType(np.shape(value), np.asarray(value).dtype.name)


class HostEager:
    """trireme.eager with every op on the host."""

    def __getattr__(self, op):
        return lambda *inputs, **attrs: eager.run(op, *inputs, device="host", **attrs)


def ops_in(graph):
    found = set()
    for node in graph.nodes:
        found.add(node.op)
        for value in node.attrs.values():
            found |= ops_in(value) if isinstance(value, Graph) else set()
    return found


def test_control_flow_becomes_structured_ops():
    def of(program):
        return ops_in(trireme.capture(program, *draws(program, 1)[0]).graph())

    assert {"loop"} == of(small_programs.collatz) & {"loop", "scan"}
    assert {"scan", "if"} <= of(small_programs.counter)
    assert "loop" in of(small_programs.early_exit_rnn)
    assert {"loop", "scan"} <= of(small_programs.nested_rnn)
    assert not of(small_programs.sorting_network) & {"loop", "scan"}


def test_only_what_is_read_is_carried():
    graph = trireme.capture(small_programs.gcd, np.int64(4), np.int64(6)).graph()
    (loop,) = (node for node in graph.nodes if node.op == "loop")
    assert loop.attrs["carried"] == 2
    assert len(loop.outputs) == 2


@pytest.mark.parametrize("program", BAD, ids=lambda program: program.__name__)
def test_what_no_graph_can_hold_is_listed_with_its_line(program):
    examples, sentences = BAD[program]
    with pytest.raises(trireme.ConvertError) as raised:
        trireme.capture(program, *examples, fallback=False)
    for sentence in sentences:
        assert sentence in str(raised.value)


def test_every_place_is_listed_at_once():
    with pytest.raises(trireme.ConvertError) as raised:
        trireme.capture(bad_programs.several, *BAD[bad_programs.several][0], fallback=False)
    assert len(raised.value.facts) == 3


def test_a_node_names_its_line():
    graph = trireme.capture(small_programs.gcd, np.int64(4), np.int64(6)).graph()
    first = small_programs.gcd.__code__.co_firstlineno
    assert graph.nodes[0].source == f"small_programs.py:{first + 1}"


FACTOR = 2


def by_global(x):
    return x * FACTOR


def test_a_global_that_changed_is_an_error(monkeypatch):
    captured = trireme.capture(by_global, np.float64(1))
    assert captured(np.float64(3)) == 6
    monkeypatch.setitem(by_global.__globals__, "FACTOR", 5)
    with pytest.raises(trireme.RunError, match="FACTOR changed since by_global was captured"):
        captured(np.float64(3))


@pytest.mark.parametrize(
    "held", [[2.0], {"by": 2.0}, np.full(1, 2.0)], ids=lambda one: type(one).__name__
)
def test_a_global_that_changed_in_place_is_an_error(held):
    key = "by" if isinstance(held, dict) else 0

    def scale(x):
        return x * held[key]

    captured = trireme.capture(scale, np.float64(1))
    assert captured(np.float64(3)) == 6
    held[key] = 5.0
    with pytest.raises(trireme.RunError, match="held changed since"):
        captured(np.float64(3))


def test_a_closure_that_changed_is_an_error():
    by = 2

    def scale(x):
        return x * by

    captured = trireme.capture(scale, np.float64(1))
    assert captured(np.float64(3)) == 6
    by = 3
    with pytest.raises(trireme.RunError, match="by changed since"):
        captured(np.float64(3))


def test_a_python_number_is_a_constant_and_a_tensor_an_input():
    captured = trireme.capture(small_programs.power_mod, np.int64(3), 5, 7)
    assert [value.name for value in captured.graph().input_values()] == ["base"]
    assert captured(np.int64(3), 5, 7) == 3**5 % 7
    assert captured(np.int64(3), 6, 7) == 3**6 % 7, "other constants are captured when they come"


def test_long_static_loops_are_loops_of_the_graph():
    def many(x):
        for i in range(40):
            x = x + i
        return x

    assert "loop" in ops_in(trireme.capture(many, np.float64(1)).graph())
    assert "loop" not in ops_in(trireme.capture(many, np.float64(1), unroll=50).graph())
    assert trireme.capture(many, np.float64(1))(np.float64(1)) == many(1)


def test_a_number_takes_the_dtype_of_the_tensor_beside_it():
    def halves(x):
        total = 0
        while x > 1:
            x = x / 2
            total = total + x
        return total

    for dtype in (np.float16, np.float32, np.float64):
        got = trireme.capture(halves, dtype(9))(dtype(9))
        assert got.dtype == dtype
        assert np.isclose(got, halves(9.0), rtol=1e-2)


def test_arguments_in_lists_and_results_in_tuples_keep_their_form():
    def both(pair, options):
        first, second = pair
        return {"sum": first + second}, [first * options["by"]]

    captured = trireme.capture(both, [np.ones(2), np.ones(2)], {"by": np.float64(3)})
    made = captured([np.ones(2), np.full(2, 4.0)], {"by": np.float64(2)})
    assert isinstance(made, tuple)
    np.testing.assert_array_equal(made[0]["sum"], [5, 5])
    np.testing.assert_array_equal(made[1][0], [2, 2])


def test_a_symbol_stands_for_any_length():
    captured = trireme.capture(small_programs.clipped_sum, TensorType(("n",), "float64"))
    for length in (0, 1, 7):
        xs = np.linspace(-2, 2, length)
        assert np.isclose(captured(xs), small_programs.clipped_sum(xs))
    assert captured.graph().type(captured.graph().inputs[0]).shape == ("n",)


def test_without_types_there_is_no_graph_yet():
    with pytest.raises(trireme.ConvertError, match="gcd has no graph yet"):
        trireme.capture(small_programs.gcd).graph()


def test_a_function_without_source_is_refused():
    with pytest.raises(trireme.ConvertError, match="no Python function"):
        trireme.capture(np.sin, np.ones(2))
    names = {}
    exec("def typed(x):\n    return x", names)
    with pytest.raises(trireme.ConvertError, match="source of typed cannot be read"):
        trireme.capture(names["typed"], np.ones(2))


def test_constant_results_are_outputs_of_the_graph():
    def with_constants(x):
        return x + 1, 3, {"scale": 0.5, "table": np.arange(3, dtype=np.int32), "name": "n"}, True

    captured = trireme.capture(with_constants)
    x = np.float32([1, 2])
    total, count, rest, flag = captured(x)
    assert (count, rest["scale"], rest["name"], flag) == (3, 0.5, "n", True)
    assert type(count) is int and type(flag) is bool
    np.testing.assert_array_equal(total, x + 1)
    with trireme.Session(captured.graph(x)) as session:
        found = list(session.run({"x": x}).values())
    for got, want in zip(found, [x + 1, 3, 0.5, np.arange(3), True], strict=True):
        np.testing.assert_array_equal(got, want)


def pinned(xs):
    ys = xs * 2
    with trireme.device("cpu"):
        zs = np.tanh(ys) + ys
    for _ in range(int(ys[0])):
        with trireme.device("cpu"):
            zs = zs * xs
        zs = zs + 1
    if zs[0] > 0:
        with trireme.device("cpu"):
            zs = zs - 1
    return zs


def test_the_source_shows_devices():
    xs = np.arange(3, dtype=np.float32)
    text = trireme.capture(pinned, xs).source()
    assert text.count("with trireme.device('cpu'):") == 3
    names = {"np": np, "eager": HostEager(), "trireme": trireme, "constants": {}}
    exec(text, names)
    found = names["pinned"](eager.Tensor(xs, tensor_type(xs), "host"))
    np.testing.assert_allclose(np.asarray(found), pinned(xs), rtol=1e-6)


def twice(xs):
    ys = xs + 1
    return ys, xs, ys, {"again": ys, "given": xs}


@pytest.mark.parametrize(
    "graph_of", [trireme.trace, lambda *given: trireme.capture(*given).graph()]
)
def test_a_value_that_is_returned_twice_is_two_outputs(graph_of):
    """A session answers by name: each output has its own."""
    xs = np.arange(3, dtype=np.float32)
    graph = graph_of(twice, xs)
    ys, given, again, others = twice(xs)
    with trireme.Session(graph) as session:
        found = session.run({"xs": xs})
    wanted = [ys, given, again, others["again"], others["given"]]
    assert [value.name for value in graph.output_values()] == list(found)
    for one, right in zip(found.values(), wanted, strict=True):
        np.testing.assert_array_equal(one, right)
    for call in (trireme.capture(twice, xs), trireme.compile(twice)):
        made = call(xs)
        np.testing.assert_array_equal(made[2], again)
        np.testing.assert_array_equal(made[3]["given"], xs)


def test_what_a_turn_sets_first_is_carried_in_the_order_of_the_program():
    def own(xs):
        for x in xs:
            first, second, third, fourth, fifth = x, x + 1, x + 2, x + 3, x + 4
        return first + second * third - fourth * fifth

    text = trireme.capture(own, np.ones(3)).source()
    assert "first, second, third, fourth, fifth = " in text
