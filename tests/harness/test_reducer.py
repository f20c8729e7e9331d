"""The reducer of failing graphs: what is left still fails, and nothing of it can go."""

import pytest

pytest.importorskip("ai_edge_litert", reason="random models are compared with LiteRT")
pytest.importorskip("onnxruntime", reason="random graphs are compared with ONNX Runtime")

from lab.fuzz.campaign import ONNX, TFLITE, made_small  # noqa: E402
from lab.fuzz.check import Failure  # noqa: E402
from lab.fuzz.shrink import shrink  # noqa: E402
from lab.fuzz.worker import Worker  # noqa: E402


@pytest.mark.parametrize("wanted", [{3}, {0, 19}, {4, 5, 11}])
def test_the_parts_that_matter_are_left(wanted):
    assert shrink(range(20), lambda rest: wanted <= set(rest)) == sorted(wanted)


@pytest.mark.parametrize("family", [ONNX, TFLITE], ids=lambda one: one.name)
def test_a_failing_graph_becomes_one_node(family, tmp_path):
    with Worker() as peer:
        grown, _ = peer(family.grown_and_answered, 3, "any")
        names = {part.name if family is ONNX else part.code for part in grown.parts}
        guilty = sorted(names)[0]

        def run(part, answers):
            given = {one.name if family is ONNX else one.code for one in part.parts}
            return "", [Failure("here", "wrong", "planted")] if guilty in given else []

        small, failure = made_small(family, grown, 3, run, peer, Failure("here", "wrong", ""))
    assert len(small.parts) == 1 < len(grown.parts) and failure.text == "planted"
    assert family.as_text(small)
