"""Every TFLite operator on stored integers, bit for bit against LiteRT's reference kernels.

A new operator of the converter needs cases in `MAKERS`, or a reason in `NO_INTEGERS`.
"""

from pathlib import Path

import numpy as np
import pytest
import tflite_integer_products  # noqa: F401  adds its makers
from litert import litert_run
from tflite_integer_cases import DTYPES, MAKERS
from tflite_integer_facts import DIFFERENCES, FLOATS_IN_LITERT, NO_INTEGERS, REFUSED, Difference

from trireme import Session
from trireme.converters.tflite.walk import OPERATORS, convert
from trireme.ir.interpreter import run_reference
from trireme.support.errors import TriremeError


def theirs_of(case):
    """The outputs of LiteRT's reference kernel, None where it refuses the model or the inputs."""
    try:
        return litert_run(case.data, case.feeds)
    except (RuntimeError, ValueError):
        return None


def largest_difference(case, theirs):
    """The largest difference of an element, in steps of integers; floats must be the same."""
    ours, worst = run_reference(convert(case.data), case.feeds), 0
    assert list(ours) == list(theirs)
    for name, want in theirs.items():
        got = ours[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{case.name}: {name}"
        if want.dtype.kind == "f":
            np.testing.assert_array_equal(got, want, err_msg=case.name)
            continue
        apart = np.abs(got.astype(np.int64) - want.astype(np.int64)).max(initial=0)
        worst = max(worst, int(apart))
    return worst


def compared(code, dtype):
    """The largest difference by case, and the errors of the cases that are refused here alone."""
    worst, errors = {}, {}
    for case in MAKERS[code](dtype):
        assert case.name not in worst and case.name not in errors, f"{case.name} comes twice"
        theirs = theirs_of(case)
        if theirs is None:
            continue
        try:
            worst[case.name] = largest_difference(case, theirs)
        except TriremeError as error:
            errors[case.name] = str(error)
    return worst, errors


@pytest.mark.parametrize("code", sorted(MAKERS))
def test_integers_have_the_bits_of_the_reference_kernel(code):
    ran = set()
    for dtype in DTYPES:
        worst, errors = compared(code, dtype)
        ran |= {*worst, *errors}
        known = DIFFERENCES.get((code, dtype))
        apart = {name: most for name, most in worst.items() if most}
        assert max(worst.values(), default=0) == (known.most if known else 0), f"{dtype}: {apart}"
        assert bool(errors) == (dtype in REFUSED.get(code, ())), f"{dtype}: {errors}"
    assert bool(ran) == (code not in FLOATS_IN_LITERT)


@pytest.mark.sweep
@pytest.mark.parametrize("code", sorted(MAKERS))
def test_the_cpu_has_the_bits_of_the_interpreter(code):
    for dtype in DTYPES:
        cases = list(MAKERS[code](dtype))
        for case in {each.name: each for each in (cases[0], cases[-1])}.values():
            try:
                wanted = run_reference(convert(case.data), case.feeds)
            except TriremeError:
                continue
            with Session(case.data, devices=["cpu"], threads=1) as session:
                for name, array in session.run(case.feeds).items():
                    np.testing.assert_array_equal(array, wanted[name], err_msg=case.name)


def test_the_guide_lists_the_differences():
    text = (Path(__file__).parents[3] / "docs/how-to/run-a-tflite-model.md").read_text()
    _, table = text.split("## Compare with LiteRT")
    rows = [
        line.strip("| ").split(" | ") for line in table.split("##")[0].splitlines() if "|" in line
    ]
    listed = {
        (code, dtype): Difference(int(steps), why)
        for code, dtypes, steps, why in rows[2:]
        for dtype in dtypes.split(", ")
    }
    assert listed == DIFFERENCES


def test_every_operator_has_cases_or_a_reason():
    assert set(OPERATORS) - set(MAKERS) - set(NO_INTEGERS) == set()
    assert set(MAKERS) & set(NO_INTEGERS) == set()
    assert set(MAKERS) | set(NO_INTEGERS) <= set(OPERATORS)
    assert {code for code, _ in DIFFERENCES} | set(REFUSED) <= set(MAKERS)
