"""Random ONNX graphs: ONNX Runtime's answer from bytes, from a path, and from a full cache.

Every graph is loaded from a path twice, with an empty model cache and with the one that it filled;
a third of them from bytes too.
A failure prints its seed and the graph made small; `python -m lab.fuzz` runs any number
of seeds and writes what fails for replay.
"""

import pytest

pytest.importorskip("onnxruntime", reason="random graphs are compared with ONNX Runtime")

from lab.fuzz.campaign import campaign, on_devices, otherwise, with_open_shapes  # noqa: E402
from lab.fuzz.forcing import Ran, on_forced_devices, shares  # noqa: E402
from lab.fuzz.grow import KINDS  # noqa: E402
from lab.fuzz.worker import Worker  # noqa: E402
from sweep import sweep  # noqa: E402

from trireme.backend.registry import open_device  # noqa: E402

SEEDS = 300
BATCHES = 10


@pytest.fixture(scope="module")
def cpu():
    device = open_device("cpu")
    yield device
    device.close()


@pytest.fixture(scope="module")
def peer():
    """The process that ONNX Runtime is in."""
    with Worker() as worker:
        yield worker


@pytest.mark.parametrize("batch", sweep(range(BATCHES), always=range(3)))
def test_random_graphs_are_as_onnx_runtime_computes_them(cpu, peer, batch):
    report = campaign(range(batch, SEEDS, BATCHES), on_devices([cpu]), peer)
    print(report)
    assert not report.failed, "\n".join(report.failed)
    assert report.counts["equal"] >= 0.8 * SEEDS / BATCHES


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 100), marks=pytest.mark.slow)])
def test_random_graphs_are_the_same_on_any_devices(devices, peer, seeds):
    """On each device all that it takes, and every node on a random device of those that take it."""
    ran = Ran()
    report = campaign(seeds, on_forced_devices(devices, ran), peer, kinds=tuple(KINDS))
    print(report, *(shares(ran, name) for name in devices), sep="\n")
    assert not report.failed, "\n".join(report.failed)
    assert all(any(where == name for _, where in ran) for name in devices)


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 300), marks=pytest.mark.slow)])
def test_random_graphs_are_the_same_however_they_are_run(cpu, peer, seeds):
    """Unoptimised, from a .trm file, node by node, and in one order."""
    report = campaign(seeds, otherwise([cpu]), peer)
    print(report)
    assert not report.failed, "\n".join(report.failed)


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 400), marks=pytest.mark.slow)])
def test_random_graphs_with_open_shapes(cpu, peer, seeds):
    """The inputs' dimensions are symbols; planned ahead, and as dataflow."""
    report = campaign(seeds, with_open_shapes([cpu]), peer)
    print(report)
    assert not report.failed, "\n".join(report.failed)
    assert report.counts["equal"] >= 0.7 * len(seeds)


EMPTY_PARTS = (501969, 502030)
"""Programs for every shape with a part that has no elements: its steps, then all its memory."""


@pytest.mark.parametrize("seed", EMPTY_PARTS)
def test_open_shapes_without_elements(cpu, peer, seed):
    report = campaign([seed], with_open_shapes([cpu]), peer)
    assert report.counts["equal"] == 1 and not report.failed, "\n".join(report.failed)
