"""Random .tflite models: LiteRT's reference kernels' bits from bytes, a path and a full cache."""

import pytest

pytest.importorskip("ai_edge_litert", reason="random models are compared with LiteRT")

from lab.fuzz.campaign import TFLITE, campaign, in_every_way  # noqa: E402
from lab.fuzz.worker import Worker  # noqa: E402

from trireme.backend.registry import open_device  # noqa: E402


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 1000), marks=pytest.mark.slow)]
)
def test_random_models_are_as_litert_computes_them(seeds):
    device = open_device("cpu")
    with Worker() as peer:
        report = campaign(seeds, in_every_way([device]), peer, family=TFLITE)
    device.close()
    print(report)
    assert not report.failed, "\n".join(report.failed)
    assert report.counts["equal"] >= 0.9 * len(seeds)
