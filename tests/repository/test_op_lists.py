"""What is true of an op stands on its OpDef: no module keeps a list of op names to say it again.

The tables of kernels and of converters are lists by nature. What else names several ops is an
exception with its reason in `op_lists`.
"""

import pytest
from op_lists import NOT_OPS, RULES, TABLES, lists_in, op_lists, outside_tables
from zoo import CHECKOUT


def test_no_list_of_op_names_says_what_a_trait_says():
    lists, known = outside_tables(CHECKOUT), RULES | NOT_OPS
    extra = [one for one in lists if (one.path, one.names) not in known]
    assert not extra, "make this a trait of the ops: " + "\n".join(map(str, extra))
    gone = known.keys() - {(one.path, one.names) for one in lists}
    assert not gone, f"no longer there, so no longer an exception: {gone}"


@pytest.mark.parametrize("path", TABLES)
def test_every_table_is_there(path):
    assert any(one.path.startswith(path) for one in op_lists(CHECKOUT))


OPS = {"add", "sub", "mul"}
FOUND = {
    '{"add", "sub"}': ["add", "sub"],
    'frozenset(["sub", "add", "other"])': ["sub", "add"],
    '{"add": 1, "mul": 2}': ["add", "mul"],
    '"add sub other".split()': ["add", "sub"],
    'op in ("add", "sub", "mul")': ["add", "sub", "mul"],
    '(["add", "sub"], rule)': ["add", "sub"],
}
NOT_FOUND = ['{"add"}', 'op in ("add", "sub")', 'op == "add"', '"add sub"', '("add", "other")']


@pytest.mark.parametrize("source", FOUND)
def test_a_list_is_found(source):
    assert [names for _, names in lists_in(source, OPS)] == [FOUND[source]]


@pytest.mark.parametrize("source", NOT_FOUND)
def test_what_is_no_list(source):
    assert not list(lists_in(source, OPS))


def test_the_line_of_a_rewrite_is_no_list():
    assert not list(lists_in('(["add", "sub"], rule)', OPS, is_pass=True))
    assert list(lists_in('{"add", "sub"}', OPS, is_pass=True))
