"""A profile sums its rows by op and by device, each clock apart, the slowest first."""

import json

import numpy as np
import pytest
from commands import call, save_small

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.profiling.prediction import predict
from trireme.profiling.rows import NodeRow
from trireme.profiling.sums import MOST_LINES, sum_lines, sums_by_op


@pytest.fixture(scope="module")
def profile():
    """A profile of a model on the wall clock and on the virtual one."""
    b = GraphBuilder("both")
    x = b.input("x", TensorType((4, 64), "float16"))
    w = b.constant("w", np.ones((64, 64), np.float16))
    y = b.add("softmax", b.add("matmul", x, w, names=["far"]), axis=-1)
    y = b.add("matmul", y, w, names=["near"])
    pins = {"far": "npu", "near": "cpu", "op:softmax": "cpu"}
    options = trireme.PlacementOptions(pins=pins)
    with trireme.Session(b.finish(y), devices=["npu", "cpu"], placement_options=options) as session:
        yield session.profile({"x": np.ones((4, 64), np.float16)}, runs=2)


@pytest.mark.parametrize("what, rows", [("by_op", "nodes"), ("by_device", "tasks")])
def test_sums_hold_every_row_once_and_add_no_clocks(profile, what, rows):
    sums, rows = getattr(profile, what), getattr(profile, rows)
    assert {one.clock for one in sums} == {"wall", "virtual"}
    for clock in ("wall", "virtual"):
        mine = [one for one in sums if one.clock == clock]
        assert sum(one.count for one in mine) == sum(row.clock == clock for row in rows)
        whole = sum(row.seconds for row in rows if row.clock == clock)
        assert sum(one.seconds for one in mine) == pytest.approx(whole)
        assert sum(one.share for one in mine) == pytest.approx(1.0)
    assert [one.seconds for one in sums] == sorted((one.seconds for one in sums), reverse=True)
    assert profile.to_json()[what] == [vars(one) for one in sums]


def test_copies_are_summed_by_link(profile):
    assert {one.name for one in profile.by_device} == {"npu", "cpu", "host>npu", "npu>host"}


def row(op, clock="wall", us=1.0):
    return NodeRow((0,), 0, op, "cpu", "", clock, 0.0, us * 1e-6, 0, {}, (), (op,))


def test_an_op_on_two_clocks_has_two_sums():
    sums = sums_by_op([row("conv"), row("conv", "virtual", 3.0), row("conv")])
    assert [(one.clock, one.count, one.share) for one in sums] == [
        ("virtual", 1, 1.0),
        ("wall", 2, 1.0),
    ]


def test_the_table_has_the_slowest_and_says_how_many_more_there_are():
    rows = [row(f"op{i}", us=i) for i in range(MOST_LINES + 3)]
    lines = sum_lines("op", "kernels", sums_by_op(rows))
    assert lines[2].split() == ["op12", "wall", "1", "12.0", "us", "15.4%"]
    assert len(lines) == MOST_LINES + 3 and lines[-1] == "  and 3 more: --json has all"
    assert len({len(line) for line in lines[1:-1]}) == 1


def test_the_command_prints_the_sums(tmp_path, capsys, no_calibration):
    model = save_small(tmp_path / "small.trm")
    code, out, _ = call(capsys, "profile", model, "--runs", "2", "--json", "-")
    assert code == 0 and json.loads(out)["by_op"][0]["name"] == "conv"
    code, out, _ = call(capsys, "profile", model, "--runs", "2")
    (line,) = [line for line in out.splitlines() if line.startswith("  conv ")]
    assert line.split()[1:3] == ["wall", "1"] and line.endswith("100.0%")
    code, out, _ = call(capsys, "profile", model, "--soc", "rk3588")
    assert code == 0 and "share" in out


def test_a_prediction_is_summed_too(tmp_path):
    with trireme.Session(save_small(tmp_path / "small.trm")) as session:
        data = predict(session.plan).to_json()
    assert {one["name"] for one in data["by_op"]} == {"conv"}
    assert [one["name"] for one in data["by_device"]] == ["cpu"]
