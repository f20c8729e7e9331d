"""A program that asks what only an array answers: equal to Python, or said with file and line."""

import copy
import dataclasses
import datetime
import inspect
import itertools
import re
import time
import warnings

import numpy as np
import pytest
from asking_programs import PLAIN, PROGRAMS, STAY_GRAPHS

import trireme
from trireme import eager
from trireme.converters.python.trace import TraceWarning
from trireme.ir.interpreter import run_reference

SEED = 20
LINE = re.compile(r"^asking_programs\.py:\d+: ")
by_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)


def cases(program):
    """Arguments of several values: two that are one array, negative and positive zeros."""
    rng = np.random.default_rng(SEED)
    for x in (PLAIN, PLAIN, -PLAIN, PLAIN * 0, -(PLAIN * 0), rng.normal(size=PLAIN.shape)):
        made = {"x": x, "xs": [x, x + 1], "d": {"a": x}, "y": x if x.sum() > 0 else x + 1, "n": 3}
        yield [made[name] for name in inspect.signature(program).parameters]


def same(got, wanted):
    if isinstance(wanted, (tuple, list)):
        return type(got) is type(wanted) and len(got) == len(wanted) and all(map(same, got, wanted))
    if isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(same(got[key], wanted[key]) for key in wanted)
    if not isinstance(wanted, np.ndarray):
        return type(got) is type(wanted) and got == wanted
    alike = isinstance(got, np.ndarray) and (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    return alike and np.allclose(got, wanted, rtol=1e-12, equal_nan=True)


def in_python(program, case):
    """What the program gives, and what it leaves in its arguments."""
    given = copy.deepcopy(case)
    with np.errstate(all="ignore"):
        return program(*given), given


@by_program
def test_compile_gives_what_python_gives(program):
    compiled = trireme.compile(program, devices=["cpu"])
    said = []
    for case in cases(program):
        wanted, changed = in_python(program, case)
        given = copy.deepcopy(case)
        with np.errstate(all="ignore"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = compiled(*given)
        said += [str(one.message) for one in caught if one.category is TraceWarning]
        assert same(got, wanted), f"seed {SEED}: {case}: {got}, expected {wanted}"
        assert same(given, changed), f"seed {SEED}: {case}: the arguments became {given}"
    assert all(map(LINE.match, said)), said
    assert compiled.stats.graphs or said
    if program in STAY_GRAPHS:
        assert not said
        assert compiled.stats.graph_runs > 0
    compiled.close()


@by_program
def test_trace_gives_what_python_gives_or_says_the_line(program):
    case = [x + 0 if isinstance(x, np.ndarray) else x for x in next(cases(program))]
    with np.errstate(all="ignore"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            graph = trireme.trace(program, *copy.deepcopy(case))
        except trireme.TriremeError as error:
            assert LINE.match(str(error)), error
            return
    said = [str(one.message) for one in caught if one.category is TraceWarning]
    assert all(map(LINE.match, said)), said
    feeds = {"x": case[-1] if program.__name__[:4] == "list" else case[0], "y": case[-1]}
    made = run_reference(graph, {v.name: feeds[v.name] for v in graph.input_values()})
    wanted = in_python(program, case)[0]
    wanted = wanted if isinstance(wanted, (tuple, list)) else [wanted]
    assert said or all(map(same, made.values(), wanted))


@by_program
@pytest.mark.parametrize("fallback", [False, True])
def test_capture_gives_what_python_gives_or_says_the_line(program, fallback):
    try:
        captured = trireme.capture(program, *next(cases(program)), fallback=fallback)
    except trireme.ConvertError as error:
        assert all(re.match(r"asking_programs\.py:\d+: ", fact) for fact in error.facts)
        assert error.facts
        return
    for case in cases(program):
        wanted, changed = in_python(program, case)
        given = copy.deepcopy(case)
        with np.errstate(all="ignore"):
            got = captured(*given)
        assert same(got, wanted), f"seed {SEED}: {case}: {got}, expected {wanted}"
        assert same(given, changed), f"seed {SEED}: {case}: the arguments became {given}"


def test_a_question_of_a_tensor_has_the_answer_of_a_tensor():
    def asking(x):
        return x * 2 if isinstance(x, eager.Tensor) and not isinstance(x, np.ndarray) else x

    def reading(x):
        return x * 2 if hasattr(x, "device") and type(x) is eager.Tensor else x

    x = eager.tensor(PLAIN)
    for program, graph_runs in ((asking, 1), (reading, 0)):
        compiled = trireme.compile(program, devices=["cpu"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                np.testing.assert_array_equal(compiled(x).numpy(), PLAIN * 2)
        assert compiled.stats.graph_runs == graph_runs
        assert bool(caught) == (graph_runs == 0)


@pytest.mark.parametrize("given", [np.matrix(PLAIN), np.ma.masked_less(PLAIN, 0)], ids=type)
def test_an_array_with_operators_of_its_own_is_no_array(given):
    def scaled(x):
        return (x * x.T).sum()

    compiled = trireme.compile(scaled)
    square = given[:2, :2]
    np.testing.assert_allclose(compiled(np.asarray(square)), scaled(np.asarray(square)))
    with pytest.warns(TraceWarning, match=f"x is a {type(given).__name__}, whose operators"):
        assert compiled(square) == scaled(square)
    for make in (trireme.trace, trireme.capture):
        with pytest.raises(trireme.GraphError, match="whose operators are not an array's"):
            make(scaled, square)


def test_an_array_without_axes_is_no_scalar():
    def asked(x):
        return 2.0 * x if isinstance(x, np.ndarray) else 3.0 * x

    compiled = trireme.compile(asked, devices=["cpu"])
    for _ in range(2):
        assert compiled(np.float64(2)) == 6
        assert compiled(np.array(2.0)) == 4
    assert compiled.stats.graph_runs == 2


class Cell:
    """An object that keeps what it computes for the next call."""

    def __init__(self):
        self.h, self.count, self.seen = np.zeros(3), 0, []

    def __call__(self, x):
        self.h = np.tanh(x[0] + self.h)
        self.count += 1
        self.seen.append(self.count)
        return self.h * self.count


class Lazy:
    """An object that makes its weights at the first call."""

    w = None

    def __call__(self, x):
        if self.w is None:
            self.w = np.arange(3.0)
        return x * self.w


def test_an_object_that_changes_runs_as_python_and_changes_once_a_call():
    cell, own = Cell(), Cell()
    compiled = trireme.compile(cell)
    with pytest.warns(TraceWarning, match="changes what it reads outside its arguments"):
        for case in cases(lambda x: x):
            np.testing.assert_array_equal(compiled(*case), own(*case))
            np.testing.assert_array_equal(cell.h, own.h)
            assert (cell.count, cell.seen) == (own.count, own.seen)
    assert (compiled.stats.graphs, compiled.stats.eager_runs) == (0, 6)


def test_an_object_that_loads_at_first_becomes_a_graph():
    compiled = trireme.compile(Lazy(), devices=["cpu"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            np.testing.assert_array_equal(compiled(PLAIN), Lazy()(PLAIN))
    assert (compiled.stats.graphs, compiled.stats.graph_runs) == (1, 1)


def test_an_object_that_guards_its_attributes_is_put_back():
    @dataclasses.dataclass(frozen=True)
    class Guarded:
        held: dict

        def __call__(self, x):
            object.__setattr__(self, "extra", len(vars(self)))
            self.held[len(self.held)] = self.extra
            return x * self.extra

    guarded, own = Guarded({}), Guarded({})
    compiled = trireme.compile(guarded)
    with pytest.warns(TraceWarning, match="changes what it reads outside"):
        for _ in range(4):
            np.testing.assert_array_equal(compiled(PLAIN), own(PLAIN))
            assert vars(guarded) == vars(own)


def test_what_a_failed_trace_changed_is_put_back():
    seen, counts = [], {"calls": 0}
    rng = np.random.default_rng(SEED)

    def failing(x):
        counts["calls"] += 1
        seen.append(rng.random() + np.random.rand())
        x = x * seen[-1]
        x[0] = 1
        return x

    np.random.seed(SEED)
    own = np.random.default_rng(SEED).random() + np.random.rand()
    np.random.seed(SEED)
    with pytest.warns(TraceWarning, match="elements of .* are assigned"):
        trireme.compile(failing)(PLAIN)
    assert (seen, counts) == ([own], {"calls": 1})


def a_clock():
    return lambda x: x * time.perf_counter()


def a_date():
    return lambda x: x * datetime.datetime.now().microsecond


def an_iterator_of_a_closure():
    numbers = itertools.count()
    return lambda x: x * next(numbers)


def an_iterator_of_an_object():
    class Own:
        numbers = itertools.count()

        def __call__(self, x):
            return x * next(self.numbers)

    return Own()


def a_seed_of_the_system():
    return lambda x: x * np.random.default_rng().random()


@pytest.mark.parametrize(
    "make",
    [a_clock, a_date, an_iterator_of_a_closure, an_iterator_of_an_object, a_seed_of_the_system],
)
def test_what_each_call_gives_anew_is_in_no_graph(make):
    compiled = trireme.compile(make())
    with pytest.warns(TraceWarning, match=r"test_asking.py:\d+: .* every call; ?.* as Python"):
        made = {float(compiled(PLAIN)[0, 0]) for _ in range(4)}
    assert len(made) == 4
    assert compiled.stats.graphs == 0
    with pytest.warns(TraceWarning, match="every call: the graph holds"):
        trireme.trace(make(), PLAIN)
    with pytest.raises(trireme.ConvertError):
        trireme.trace(make(), PLAIN, strict=True)
    with pytest.raises(trireme.ConvertError, match=r"test_asking.py:\d+: "):
        trireme.capture(make(), PLAIN, fallback=False)


def test_an_iterator_among_the_arguments_is_read_as_python_reads_it():
    def scaled(x, numbers):
        return x * next(numbers)

    compiled, numbers = trireme.compile(scaled), iter([2.0, 3.0, 4.0])
    with pytest.warns(TraceWarning, match="an iterator is read on at every call; make it a list"):
        made = [compiled(PLAIN, numbers)[0, 0] for _ in range(3)]
    assert made == [3.0, 4.5, 6.0]
    with pytest.raises(trireme.ConvertError, match="numbers is an iterator"):
        trireme.capture(scaled, PLAIN, iter([1.0]))
