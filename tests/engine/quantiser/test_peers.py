"""Agreement with float, with our defaults, beside the best settings of ONNX Runtime and NNCF.

All are quantised on the same samples in the test, and compared on others. The small nets run
wherever ONNX Runtime is. The whole models need torch, transformers, scikit-learn and NNCF, and
take minutes each.

ONNX Runtime's dynamic setting leaves all values float. Integers throughout, our default for
convolutional nets, lose to it on a net of few channels. Our scheme dynamic is compared with it.
"""

import numpy as np
import pytest
from float_graphs import conv_net, encoder_block
from quantising_peers import (
    OURS,
    OURS_DYNAMIC,
    SETTINGS,
    THEIRS_DYNAMIC,
    Agreement,
    agreements,
    installed,
)

import trireme

SEED = 3
ALLOWED_DB = 0.3
DYNAMIC = [OURS_DYNAMIC, THEIRS_DYNAMIC]
WHOLE = [name for name in SETTINGS if name != OURS_DYNAMIC]
STATIC = [name for name in SETTINGS if name not in DYNAMIC]
NETS = {
    "encoder_block": (encoder_block, WHOLE),
    "conv_net": (lambda seed: conv_net(seed, ends_in="identity"), STATIC),
    "conv_net, dynamic": (lambda seed: conv_net(seed, ends_in="identity"), DYNAMIC),
}
"""The maker of a net, and the settings that are compared."""
MODELS = [
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "bert_mini",
    "vit_tiny",
    "gpt2",
    "llama",
    "t5",
    "distilbert",
    "segformer",
    "wav2vec2",
]


def _printed(name, result, seconds):
    """Print a row when it is there, since a model takes minutes; return it."""
    print(f"{name}: {result}, {seconds:.0f} s", flush=True)
    return name, result, seconds


def assert_at_least_the_best_peer(found):
    """Print all figures; compare signal-to-noise, whole and of what depends on the input."""
    found = [_printed(*row) for row in found]
    made = {name: result for name, result, _ in found if isinstance(result, Agreement)}
    (ours,) = (made.pop(name) for name in (OURS, OURS_DYNAMIC) if name in made)
    assert made, "no peer has a figure"
    assert ours.db >= max(one.db for one in made.values()) - ALLOWED_DB
    assert ours.moving_db >= max(one.moving_db for one in made.values()) - ALLOWED_DB


@pytest.mark.parametrize("name", NETS)
def test_a_small_net_agrees_as_well_as_the_best_peer(name, tmp_path):
    print("seed", SEED)
    make, settings = NETS[name]
    net = make(SEED)
    (x,) = net.input_values()
    rng = np.random.default_rng(SEED)
    ranges, feeds = (rng.standard_normal((n, *x.type.dims)).astype(np.float32) for n in (32, 64))
    path = tmp_path / "net.onnx"
    trireme.export(net, path)
    assert_at_least_the_best_peer(agreements(path, ranges, feeds, None, settings))


@pytest.mark.slow
@pytest.mark.skipif(
    not installed("torch", "transformers", "sklearn", "nncf", "openvino"),
    reason="torch, transformers, scikit-learn, NNCF or OpenVINO is missing",
)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_agrees_as_well_as_the_best_peer(name, tmp_path):
    from lively_models import write

    path, (ranges, feeds), classes = write(name, tmp_path)
    assert_at_least_the_best_peer(agreements(path, ranges, feeds, classes, WHOLE))
