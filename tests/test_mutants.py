"""The mutants that mutate.py makes: they parse, change what they say, and are drawn by a seed."""

import ast

import mutants
import pytest

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
