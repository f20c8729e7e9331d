"""Every elementwise ATen op on edge values, as torch computes it; a module and its .pt2 file."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from sweep import sweep  # noqa: E402 - needs torch
from torch_edges import (  # noqa: E402 - needs torch
    DTYPES,
    FLOATS,
    KNOWN,
    NOT_CALLED,
    NOT_IN_FILES,
    OTHER_DTYPES,
    Calls,
    calls_of,
    inputs_of,
)

import trireme  # noqa: E402
from trireme.converters.torch.activations import ACTIVATIONS  # noqa: E402
from trireme.converters.torch.elementwise import ELEMENTWISE  # noqa: E402
from trireme.converters.torch.use import array_of, dtype_name  # noqa: E402

PARTS = 8
UNITS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2e-5, "float64": 1e-12}
"""The relative difference of a result that counts as the same."""


def same(found: np.ndarray, wanted: np.ndarray, dtype: str) -> np.ndarray:
    """Where two float64 arrays agree: NaN, infinities, the sign of zero, and size."""
    least = 4 * torch.finfo(getattr(torch, dtype)).smallest_normal * 2.0**-7
    with np.errstate(all="ignore"):
        close = np.abs(found - wanted) <= UNITS[dtype] * np.abs(wanted) + least
    close &= np.isfinite(found) & np.isfinite(wanted)
    alike = (found == wanted) | close
    return (alike & (np.signbit(found) == np.signbit(wanted))) | np.isnan(found) & np.isnan(wanted)


def wrong(call, found: np.ndarray, wanted: torch.Tensor, used: set) -> np.ndarray:
    """Where a result differs without a known reason; `used` takes the reasons that serve."""
    dtype = dtype_name(wanted.dtype)
    if dtype not in FLOATS:
        return found != wanted.numpy()
    ours, theirs = found.astype(np.float64), wanted.double().numpy()
    bad = ~same(ours, theirs, dtype)
    for known in KNOWN:
        if call.name in known.ops and dtype in known.dtypes and bad.any():
            with np.errstate(all="ignore"):
                excused = bad & known.may_differ(ours, theirs)
            used |= {(known.reason, call.name)} if excused.any() else set()
            bad &= ~excused
    return bad


def compare(dtype: str, calls, inputs, session) -> set:
    """Check a session's results of the calls; return the reasons that were needed."""
    names, used = [value.name for value in session.inputs], set()
    places = {f"inputs_{place}": place for place in range(len(inputs))}
    made = session.run({name: array_of(inputs[places[name]], copy=False) for name in names})
    for call, value in zip(calls, session.outputs, strict=True):
        found, wanted = made[value.name], call(inputs)
        if call.name not in OTHER_DTYPES or dtype != "bool":
            assert str(found.dtype) == dtype_name(wanted.dtype), call
        bad = np.flatnonzero(wrong(call, found, wanted, used))
        given = [{name: inputs[at][k].item() for name, at in call.tensors.items()} for k in bad[:4]]
        assert not bad.size, f"{call} {dtype} of {given}: {found[bad[:4]]}, {wanted[bad[:4]]}"
    return used


def calls_in_part(dtype: str, part: int):
    inputs = inputs_of(dtype)
    return calls_of(dtype, inputs)[part::PARTS], inputs


@pytest.mark.parametrize(
    "dtype, part",
    sweep(
        [(dtype, part) for dtype in DTYPES for part in range(PARTS)],
        lambda dtype, part: dtype in ("float32", "uint8") and part == 0,
    ),
)
def test_elementwise_ops_are_torchs_on_edge_values(dtype, part):
    calls, inputs = calls_in_part(dtype, part)
    with trireme.Session(trireme.convert(Calls(calls), inputs), devices=["cpu"]) as session:
        compare(dtype, calls, inputs, session)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool"])
def test_a_file_and_opencl_agree_too(dtype, tmp_path):
    """The .pt2 file of all calls; what opencl has no kernel for runs on the cpu."""
    inputs = inputs_of(dtype)
    calls = [call for call in calls_of(dtype, inputs) if call.name not in NOT_IN_FILES]
    torch.export.save(torch.export.export(Calls(calls), inputs), tmp_path / "calls.pt2")
    with trireme.Session(tmp_path / "calls.pt2", devices=["opencl", "cpu"]) as session:
        compare(dtype, calls, inputs, session)


@pytest.mark.sweep
def test_every_known_difference_is_one():
    used = set()
    for dtype in FLOATS:
        inputs = inputs_of(dtype)
        ops = {op for known in KNOWN for op in known.ops}
        calls = [call for call in calls_of(dtype, inputs) if call.name in ops]
        with trireme.Session(trireme.convert(Calls(calls), inputs), devices=["cpu"]) as session:
            used |= compare(dtype, calls, inputs, session)
    assert {known.reason for known in KNOWN} == {reason for reason, _ in used}


def test_every_overload_is_called():
    called = set()
    for dtype in ("float32", "int32", "bool"):
        called |= {(call.name, call.overload) for call in calls_of(dtype, inputs_of(dtype))}
    keys = [key.split() for key in (*ELEMENTWISE, *ACTIVATIONS)]
    rules = {(name, one) for name, *overloads in keys for one in overloads or ["default"]}
    assert {name for name, _ in rules - called} == set(NOT_CALLED)


class Grid(torch.nn.Module):
    def forward(self, x):
        step = torch.full_like(x, 0.1)
        floor = torch.div(x, step, rounding_mode="floor")
        return x // 0.3, torch.remainder(x, step), floor, torch.fmod(x, step)


@pytest.mark.parametrize(
    "devices", [["cpu"], ["opencl", "cpu"], ["npu", "opencl", "cpu"]], ids="-".join
)
def test_no_quotient_is_rounded_before_its_floor(devices, tmp_path):
    x = torch.tensor([0.5, 1.5, 2.5, 3.0, 7.0, -0.7, 6.0, 1e6, 0.0, -0.0])
    torch.export.save(torch.export.export(Grid(), (x,)), tmp_path / "grid.pt2")
    with trireme.Session(tmp_path / "grid.pt2", devices=devices) as session:
        (name,) = [value.name for value in session.inputs]
        made = session.run({name: x.numpy()})
        for value, wanted in zip(session.outputs, Grid()(x), strict=True):
            found = made[value.name]
            np.testing.assert_array_equal(found, wanted.numpy())
            np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted.numpy()))
