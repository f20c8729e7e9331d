"""Python that no graph holds: refused at its line, or run as a Python operator."""

import numpy as np
import pytest
from same_as_python import expect_same, in_python

import trireme


def by_match(x):
    match x.shape:
        case (n,):
            y = x * n
        case _:
            y = x
    return y


REFUSED = {
    by_match: ("match x.shape:", "a `match` cannot be captured"),
}
X = np.array([0.5, 2.0, -1.0])


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_python_that_no_graph_holds_is_refused_at_its_line(program):
    line, sentence = REFUSED[program]
    with pytest.raises(trireme.ConvertError, match=r"test_refused\.py:\d+") as raised:
        trireme.capture(program, X, fallback=False)
    assert any(line in fact and sentence in fact for fact in raised.value.facts), raised.value


@pytest.mark.parametrize("program", [by_match], ids=lambda program: program.__name__)
def test_a_python_operator_runs_what_is_refused(program):
    captured = trireme.capture(program, X)
    assert REFUSED[program][1] in captured.fallbacks()[0]
    for case in (X, X * 3):
        expect_same(captured(case), in_python(program, (case,)), case)
