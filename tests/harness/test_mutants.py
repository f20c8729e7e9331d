"""The mutants of lab.mutation, the tests it chooses for them, and how it judges a run."""

import ast

import pytest
from lab.mutation import limits, mutant_map, mutants, warm

SOURCE = '''"""A module."""

LIMIT = 2.5


def pick(values: list, low: int = 1) -> int:
    """Return one."""
    total = 0
    for i in range(len(values)):
        if values[i] > low:
            total = max(total, values[i - 1])
    if total is None:
        raise ValueError(f"{total + 1} is odd")
    values.append(total)
    return total - 1 if values else low
'''
KINDS = {
    "comparison": {"(values[i]) >= (low)", "(total) is not (None)"},
    "constant": {"5.0", "1", "2"},
    "dropped statement": {"None"},
    "negated condition": {"(not (values[i] > low))", "(not (total is None))", "(not (values))"},
    "off by one": {"(len(values)) - 1", "2", "(i) + 1", "(total) + 1"},
    "swapped arguments": {"max(values[i - 1], total)"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind):
    made = {m.new for m in mutants.mutants_of("a.py", SOURCE) if m.kind == kind}
    assert made == KINDS[kind]


def test_each_changes_the_source_and_parses():
    for mutant in mutants.mutants_of("a.py", SOURCE):
        changed = mutant.applied(SOURCE)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE)), mutant
        assert mutant.at_import == (mutant.old == "2.5")


def test_some_are_drawn_by_a_seed_from_different_statements():
    files = {"a.py": SOURCE, "b.py": SOURCE}
    one, two = (mutants.drawn(files, 9, 3) for _ in range(2))
    assert one == two and len(one) == 9
    assert len({(m.path, m.statement) for m in one}) == 9
    assert mutants.drawn(files, 9, 4) != one


def test_a_file_that_changed_is_not_mutated():
    mutant = mutants.mutants_of("a.py", SOURCE)[0]
    with pytest.raises(AssertionError, match=r"a\.py has changed"):
        mutant.applied("\n\n" + SOURCE)


def test_a_mutant_is_found_where_its_statement_moved_to():
    for mutant in mutants.mutants_of("a.py", SOURCE):
        after = '"""Longer\nnow."""' + SOURCE.removeprefix('"""A module."""')
        moved = mutants.moved(mutant, SOURCE, after)
        assert (moved.line, moved.applied(after)) == (
            mutant.line + 1,
            after.replace(SOURCE[20:], mutant.applied(SOURCE)[20:]),
        )
        statement = SOURCE.splitlines()[mutant.statement[0] - 1]
        other = after.replace(statement, f"{statement}  # another")
        assert mutants.moved(mutant, SOURCE, other) is None


def known(**cost_s):
    """A map of one mutant, by which come passing tests of files a and b at these costs."""
    tests = {name.replace("__", ".py::"): cost for name, cost in cost_s.items()}
    return mutant_map.Map({0: sorted(tests)}, tests, dict.fromkeys(tests, "passed"))


def test_the_cheapest_test_of_each_function_comes_first():
    found = known(**{"a__one[x]": 2.0, "a__one[y]": 1.0, "b__two[x]": 3.0, "b__two[y]": 9.0})
    assert found.chosen(0, 99.0) == (
        ["a.py::one[y]", "b.py::two[x]", "a.py::one[x]", "b.py::two[y]"],
        True,
    )
    assert found.chosen(0, 6.0) == (["a.py::one[y]", "b.py::two[x]", "a.py::one[x]"], False)
    assert found.chosen(0, 0.5) == (["a.py::one[y]"], False)


def test_what_fails_or_skips_without_a_mutant_is_left_out(tmp_path):
    lines = ["begun\t1\ta", "passed\t1\ta", "failed\t1\tb", "skipped\t1\tc", "passed\t1\tb"]
    (tmp_path / "tests.tsv").write_text("\n".join(lines))
    (tmp_path / "hits.tsv").write_text("".join(f"0\t{test} (call)\n" for test in "abcd"))
    assert mutant_map.load_map(tmp_path).fit(0) == ["a"]


@pytest.mark.parametrize(
    ("status", "output", "verdict"),
    [
        (0, "", ("survived", "")),
        (1, "FAILED a.py::b[c - d] - ValueError: - no", ("killed", "a.py::b[c - d]")),
        (2, "ERROR a.py - SyntaxError", ("killed", "a.py")),
        (1, "ERROR  - of no test", ("killed", "exit status 1")),
        (-11, "Fatal Python error", ("killed", "exit status -11")),
        ("time", "", ("killed", "time")),
        ("limit", "", ("unresolved", "")),
    ],
)
def test_what_a_run_of_tests_says(status, output, verdict):
    assert limits.verdict_of(status, output) == verdict


NESTED = """
def outer(low):
    def inner(x):
        return x > low
    return inner

made = outer(1)
"""


@pytest.mark.parametrize("made_before", [False, True])
def test_a_fork_changes_functions_and_those_within_them(made_before):
    space = {}
    exec(compile(NESTED, "nested.py", "exec"), space)
    functions = [space["outer"], space["made"]] if made_before else [space["outer"]]
    changed = NESTED.replace("x > low", "x >= low")
    assert warm.replace_code(functions, "nested.py", NESTED, changed) == len(functions)
    assert space["outer"](1)(1) is True
    assert space["made"](1) is made_before


def test_a_fork_leaves_a_function_that_takes_other_variables_from_outside():
    space = {}
    exec(compile(NESTED, "nested.py", "exec"), space)
    changed = NESTED.replace("x > low", "None")
    assert warm.replace_code([space["made"]], "nested.py", NESTED, changed) == 0
    assert warm.replace_code([], "nested.py", NESTED, changed) == 0


def test_a_test_that_takes_many_times_as_long_hangs(tmp_path):
    log = tmp_path / "log.tsv"
    log.write_text("begun\t3.0\ta\npassed\t30.0\ta\nbegun\t33.0\tb\n")
    assert not limits.hangs(log, 62.0, {"a": 0.1, "b": 1.0})
    assert limits.hangs(log, 64.0, {"a": 0.1, "b": 1.0})
    log.write_text("begun\t3.0\ta\npassed\t99.0\ta\n")
    assert not limits.hangs(log, 102.0, {"a": 0.1})
