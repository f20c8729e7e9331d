"""non_max_suppression of many boxes picks what ONNX Runtime picks, in its order."""

import numpy as np
import pytest
from onnx_single import Single, answers_of

from trireme.converters.onnx import convert
from trireme.ir.interpreter import run_reference


@pytest.mark.parametrize("seed", range(12))
def test_many_boxes_are_picked_as_onnx_runtime_picks_them(seed):
    print("seed", seed)
    draw = np.random.default_rng(seed)
    images, classes, boxes = draw.integers(1, 3), draw.integers(1, 4), int(draw.integers(1, 900))
    begin = draw.random((images, boxes, 2))
    corners = np.concatenate([begin, begin + draw.random((images, boxes, 2)) * 0.4], -1)
    scores = draw.permuted(np.linspace(0, 1, images * classes * boxes))  # no equals
    limits = draw.choice((0, 1, 20, 500)), draw.choice((0.1, 0.4, 0.8)), draw.choice((0.0, 0.3))
    arrays = (corners, scores.reshape(images, classes, boxes), *limits)
    dtypes = (np.float32, np.float32, np.int64, np.float32, np.float32)
    inputs = tuple(np.array(a, dtype) for a, dtype in zip(arrays, dtypes, strict=True))
    single = Single("NonMaxSuppression", inputs, domain="", constants=frozenset({2, 3, 4}))
    data = single.model()
    (wanted,) = answers_of(data, single.feeds).values()
    (found,) = run_reference(convert(data), single.feeds).values()
    np.testing.assert_array_equal(found, wanted)
