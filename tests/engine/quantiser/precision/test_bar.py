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


def check(graph, feeds, socs, more_db):
    for row in rows(graph, feeds, socs, more_db):
        text, good = line(graph.name, *row)
        assert good, f"slower than a usual way, or over the budget, seed {SEED}: {text}"


@pytest.mark.parametrize("soc", SOCS)
def test_a_net_of_branches(soc):
    graph = random_net(np.random.default_rng(SEED), 8)
    data = samples_of(graph, 4, SEED)
    check(graph, [{"x": x} for x in data["x"]], [soc], [3.0])


@pytest.mark.slow
@pytest.mark.parametrize("soc", SOCS)
def test_resnet8_of_the_zoo(soc):
    path = zoo_path("resnet8_cifar10_f32.tflite")
    graph, feeds = model(str(path))
    assert len(feeds) == SAMPLES
    check(graph, feeds, [soc], [2.0])
