"""Large graphs are placed in linear time: an alternative is priced where somebody asks for it."""

import gc
import time

import numpy as np
import pytest
from commands import call, save_small

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.explain import MOST_NODES
from trireme.placement.move_cost import MoveEvaluator

pytestmark = pytest.mark.usefixtures("no_calibration")
DEVICES = ("--devices", "npu,opencl,cpu")


def save_deep(path, count, seed=0):
    """Save chains and diamonds of `count` nodes, and return where: products, sums and sigmoids."""
    rng, b = np.random.default_rng(seed), GraphBuilder("deep")
    y, left = b.input("x", TensorType((8, 32), "float32")), count
    while left:
        w = b.constant("", rng.standard_normal((32, 32)).astype(np.float32) / 6)
        branch = b.add("matmul", y, w)
        for _ in range(min(int(rng.integers(3)), left - 1)):
            branch, left = b.add("sigmoid", branch), left - 1
        is_diamond = left > 1
        y = b.add("add", branch, y) if is_diamond else branch
        left -= 1 + is_diamond
    trireme.save(b.finish(y), path)
    return str(path)


@pytest.fixture
def trials(monkeypatch):
    """The moves that were tried: of nodes to devices."""
    tried, moved = [], MoveEvaluator.moved
    monkeypatch.setattr(
        MoveEvaluator, "moved", lambda self, changes: tried.append(changes) or moved(self, changes)
    )
    return tried


def test_place_prices_no_alternative_that_nobody_asks_for(tmp_path, capsys, trials):
    model = save_small(tmp_path / "small.trm")
    assert call(capsys, "place", model, *DEVICES)[0] == 0 and not trials
    assert call(capsys, "place", model, *DEVICES, "--json")[0] == 0 and not trials
    lock = str(tmp_path / "lock.toml")
    assert call(capsys, "place", model, *DEVICES, "--lock", lock)[0] == 0 and trials


def test_a_summary_prices_the_nodes_that_it_shows(tmp_path, capsys, trials):
    model = save_deep(tmp_path / "deep.trm", 40)
    code, out, _ = call(capsys, "explain", model, *DEVICES)
    assert code == 0 and "nodes that cost most" in out
    assert 0 < len(trials) <= MOST_NODES
    assert call(capsys, "explain", model, *DEVICES, "--json")[0] == 0
    assert len(trials) > 40


@pytest.mark.parametrize("model", ["small.trm", "absent.trm"])
def test_garbage_is_collected_as_before_when_the_command_ended(model, tmp_path, capsys):
    save_small(tmp_path / "small.trm")
    before = gc.get_threshold()
    call(capsys, "place", str(tmp_path / model))
    assert gc.get_threshold() == before


@pytest.mark.timed
def test_ten_thousand_nodes_are_placed_in_twenty_seconds(tmp_path, capsys):
    model = save_deep(tmp_path / "deep.trm", 10_000)
    start = time.process_time()
    assert call(capsys, "place", model, *DEVICES)[0] == 0
    assert time.process_time() - start < 20
