"""What the samples of the ops must reach, for every table of tests over the registry uses them."""

import pytest
from op_samples import op_samples

from trireme.ir.op import all_ops

RECURRENT = {
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "hidden_size",
    "layout",
}
UNMOVED = {
    "append_rows": {"in_place"},
    "assign": {"state"},
    "variable": {"state"},
    "batch_normalization": {"momentum", "training_mode"},
    "cast": {"round_mode", "saturate"},
    "cast_like": {"round_mode", "saturate"},
    "deform_conv": {"kernel_shape"},
    "dequantize_linear": {"axis", "block_size", "output_dtype"},
    "detection_post_process": {
        "detections_per_class",
        "iou_threshold",
        "max_detections",
        "num_classes",
        "scales",
        "score_threshold",
    },
    "eye_like": {"dtype"},
    "gru": RECURRENT | {"linear_before_reset"},
    "layer_normalization": {"stash_type"},
    "lstm": RECURRENT | {"input_forget"},
    "max_pool": {"storage_order"},
    "max_unpool": {"kernel_shape", "pads"},
    "quantize_linear": {"axis", "block_size", "output_dtype", "precision", "saturate"},
    "reduce_all": {"noop_with_empty_axes"},
    "reduce_any": {"noop_with_empty_axes"},
    "resize": {"antialias", "extrapolation_value", "keep_aspect_ratio_policy"},
    "rnn": RECURRENT,
    "roi_align": {"mode", "output_height"},
    "shape": {"end", "start"},
    "space_to_depth": {"mode"},
    "tensor_scatter": {"axis"},
    "top_k": {"sorted"},
    "unique": {"axis"},
}
"""Attributes with one value in all samples: the onnx node tests or files of their own move them.

in_place: test_rows_in_buffers.py, as the input would change
"""
SPATIAL = ("strides", "dilations", "kernel", "output_padding")


@pytest.fixture(scope="module")
def samples():
    """The samples of each op that has some."""
    made = {}
    for op, sample, _ in op_samples():
        made.setdefault(op.name, []).append(sample)
    return made


@pytest.mark.parametrize("op", [op for op in all_ops() if op.attrs], ids=lambda op: op.name)
def test_samples_move_every_attribute(op, samples):
    """A device that ignores an attribute gives a wrong answer somewhere."""
    mine = samples.get(op.name, ())
    seen = {
        name: {repr(sample.attrs.get(name, attr.default)) for sample in mine}
        for name, attr in op.attrs.items()
    }
    assert {name for name in seen if len(seen[name]) == 1} == UNMOVED.get(op.name, set())


@pytest.mark.parametrize(
    ("op", "name"),
    [(op.name, name) for op in all_ops() for name in SPATIAL if name in op.attrs],
)
def test_samples_tell_height_from_width(op, name, samples):
    values = [sample.attrs.get(name) or () for sample in samples[op]]
    assert any(len(set(value)) > 1 for value in values)


def test_ops_with_a_quantised_meaning_have_quantised_samples(samples):
    ops = {op.name for op in all_ops() if op.quantized is not None}
    assert {op for op in ops if not any(any(s.quants) for s in samples[op])} == set()
