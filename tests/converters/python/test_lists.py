"""Lists that loops make: equal to Python, or refused with a line and a rewrite that is captured."""

import re

import list_programs
import numpy as np
import pytest
from same_as_python import expect_same, in_python

import trireme


@pytest.mark.parametrize("program", list_programs.PROGRAMS, ids=lambda one: one.__name__)
def test_capture_gives_what_python_gives(program):
    cases = list_programs.PROGRAMS[program]
    captured = trireme.capture(program, *cases[0], fallback=False)
    for case in cases:
        expect_same(captured(*case), in_python(program, case), case)


@pytest.mark.parametrize("case", list_programs.REWRITES, ids=lambda case: case[0].__name__)
def test_a_refusal_names_the_line_and_a_rewrite_that_works(case):
    refused, words, rewritten, examples = case
    with pytest.raises(trireme.ConvertError) as caught:
        trireme.capture(refused, *examples[0], fallback=False)
    facts = caught.value.facts
    assert all(re.match(r"list_programs\.py:\d+: ", fact) for fact in facts)
    assert any(re.search(words, fact) for fact in facts), facts
    captured = trireme.capture(rewritten, *examples[0], fallback=False)
    for example in examples:
        got = captured(*(np.copy(one)[()] for one in example))
        expect_same(got, in_python(refused, example), example)
