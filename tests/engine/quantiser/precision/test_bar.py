"""Precision placed by cost is never slower than the usual ways at the same budget.

The usual ways are made anew by tests/support/precision_bar.py, each in its own graph. Five larger
models run there by hand: docs/experiments/precision.md.
"""

import numpy as np
import pytest
from float_graphs import samples_of
from mixed_graphs import random_net
from precision_bar import SAMPLES, SOCS, line, model, rows
from zoo import zoo_path

SEED = 21


def gain(graph, feeds, soc, more_db):
    """How many times as fast the search is as the best usual way, and never less than once."""
    (row,) = rows(graph, feeds, [soc], [more_db])
    text, good = line(graph.name, *row)
    assert good, f"slower than a usual way, or over the budget, seed {SEED}: {text}"
    _, budget_db, ways = row
    usual = [ways[key] for key in ("all", "ends", "greedy")]
    best = min(way.latency_s for way in usual if way.loss <= -budget_db)
    return best / ways["search"].latency_s


@pytest.mark.parametrize("soc", SOCS)
def test_a_net_of_branches(soc):
    graph = random_net(np.random.default_rng(SEED), 8)
    data = samples_of(graph, 4, SEED)
    assert gain(graph, [{"x": x} for x in data["x"]], soc, 3.0) >= 1


@pytest.mark.slow
@pytest.mark.parametrize(("soc", "least"), [("rk3588", 1.25), ("coral_dev_board", 1.015)])
def test_resnet8_of_the_zoo(soc, least):
    """A mixture is known that is so many times as fast as the usual ways."""
    path = zoo_path("resnet8_cifar10_f32.tflite")
    graph, feeds = model(str(path))
    assert len(feeds) == SAMPLES
    assert gain(graph, feeds, soc, 2.0) >= least
