"""`with`: what plain Python gives, and the context managers that a graph cannot enter."""

import contextlib
import warnings

import numpy as np
import pytest
from same_as_python import expect_same, in_python

import trireme

SEED = 47


def quiet(x):
    with np.errstate(divide="ignore", invalid="ignore"), contextlib.nullcontext(2) as two:
        y = x / (x - x[0])
    with warnings.catch_warnings(), np.printoptions(precision=2):
        warnings.simplefilter("ignore")
        return np.where(np.isfinite(y), y, 0) * two


def quiet_exits(x):
    total = 0.0
    for one in x:
        with np.errstate(all="ignore"):
            if one < 0:
                continue
            total = total + np.sqrt(one)
    with np.errstate(all="ignore"):
        if total > 2:
            return np.log(total)
        return total


@pytest.mark.parametrize("program", [quiet, quiet_exits], ids=lambda program: program.__name__)
def test_capture_and_compile_give_what_python_gives(program):
    rng = np.random.default_rng(SEED)
    cases = [(rng.normal(size=4),) for _ in range(8)]
    captured = trireme.capture(program, *cases[0], fallback=False)
    compiled = trireme.compile(program, devices=["cpu"], most_graphs=2)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for case in cases:
            wanted = in_python(program, case)
            expect_same(captured(*case), wanted, (SEED, case))
            expect_same(compiled(*case), wanted, (SEED, case))
    compiled.close()


def loud(x):
    with np.errstate(divide="raise"):
        return x / 2


def printed(x):
    with contextlib.redirect_stdout(None):
        return x / 2


BAD = {
    loud: ("with np.errstate", "np.errstate raises, calls or prints here"),
    printed: ("with contextlib.redirect", "a `with` of redirect_stdout acts outside the graph"),
}


@pytest.mark.parametrize("program", BAD, ids=lambda program: program.__name__)
def test_what_only_python_can_tell_is_refused_at_its_line(program):
    line, sentence = BAD[program]
    with pytest.raises(trireme.ConvertError) as raised:
        trireme.capture(program, np.ones(3), fallback=False)
    assert any(line in fact and sentence in fact for fact in raised.value.facts), raised.value


def test_torch_without_gradients():
    torch = pytest.importorskip("torch")

    def halved(x):
        with torch.no_grad():
            return x / 2

    assert trireme.capture(halved, np.float64(3), fallback=False)(np.float64(3)) == 1.5
