"""Models that packages of PyPI ship, opened with open shapes as they are, beside ONNX Runtime.

A package that is not installed is skipped. docs/experiments/published-models.md has the versions
and the differences found.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import trireme

SAMPLES = ("batch_size", "samples")
WAVES = {"waveforms": SAMPLES, "waveforms_lens": ("batch_size",)}
VOICE = {"input": ("b", "samples"), "state": (2, "b", 128)}
STATES = {"input": ("frames", 576), "h": (1, 1, 128), "c": (1, 1, 128)}
IMAGE = {"x": ("b", 3, "h", "w")}
ECHO = {"input": ("b", 3, "frames", 160)}
ASR = "onnx_asr/preprocessors/data"
SIZES_OF_WAVES = [{"batch_size": 1, "samples": 16000}, {"batch_size": 3, "samples": 9001}]
SIZES_OF_VOICE = [{"b": 1, "samples": 512}, {"b": 3, "samples": 512}]
FRAMES = [{"frames": 1}, {"frames": 7}]
BATCHES = [{"b": 1}, {"b": 3}]
MODELS = [
    (
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        IMAGE,
        [{"b": b, "h": 48, "w": w} for b, w in ((2, 320), (1, 64), (3, 201))],
    ),
    (
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        IMAGE,
        [{"b": 1, "h": 96, "w": 160}, {"b": 2, "h": 64, "w": 64}],
    ),
    (
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        IMAGE,
        [{"b": 1, "h": 48, "w": 192}, {"b": 4, "h": 48, "w": 100}],
    ),
    ("ddddocr/common.onnx", {"input1": (1, 1, 64, "w")}, [{"w": 120}, {"w": 301}]),
    ("ddddocr/common_old.onnx", {"input1": (1, 1, 64, "w")}, [{"w": 120}, {"w": 301}]),
    ("silero_vad/data/silero_vad.onnx", {**VOICE, "sr": ()}, SIZES_OF_VOICE),
    ("silero_vad/data/silero_vad_16k_op15.onnx", {**VOICE, "sr": ()}, SIZES_OF_VOICE),
    ("silero_vad/data/silero_vad_op18_ifless.onnx", {**VOICE, "sr": ()}, SIZES_OF_VOICE),
    ("silero_vad/data/silero_vad_half.onnx", VOICE, SIZES_OF_VOICE),
    ("silero_vad/data/silero_vad_16k_sequence.onnx", STATES, FRAMES),
    ("faster_whisper/assets/silero_vad_v6.onnx", STATES, FRAMES),
    ("swift_f0/model.onnx", {"input_audio": (1, "n")}, [{"n": 4000}, {"n": 16001}]),
    ("magika/models/standard_v3_3/model.onnx", {"bytes": ("b", 2048)}, BATCHES),
    (
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": ("b", 43844, 1)},
        BATCHES,
    ),
    (
        "nudenet/320n.onnx",
        {"images": ("b", 3, "h", "w")},
        [{"b": 1, "h": 320, "w": 320}, {"b": 2, "h": 64, "w": 96}],
    ),
    (
        "slovorez/models/slovorez-test/slovorez-test.onnx",
        {"input_layer": ("b", "letters")},
        [{"b": 1, "letters": 9}, {"b": 4, "letters": 17}],
    ),
    (
        "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx",
        {**ECHO, "h0": (4, 1, 64)},
        [{"b": 1, "frames": 60}, {"b": 1, "frames": 101}],
    ),
    (
        "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx",
        {**ECHO, "h0": (4, 1, 96)},
        [{"b": 1, "frames": 60}, {"b": 1, "frames": 101}],
    ),
    ("speechmos/dnsmos_models/model_v8.onnx", {"input_1": ("b", 900, 120)}, BATCHES),
    ("speechmos/dnsmos_models/sig_bak_ovr.onnx", {"input_1": ("b", 144160)}, BATCHES),
    (
        "speechmos/plcmos_models/plcmos_v2.onnx",
        {"degraded_audio": (1, 1, "frames", 257), "rater_embed": (1, 64)},
        [{"frames": 80}, {"frames": 133}],
    ),
    *(
        (f"{ASR}/{name}.onnx", WAVES, SIZES_OF_WAVES)
        for name in ("gigaam_v3", "kaldi", "nemo80", "wespeaker", "whisper80", "resample_22_16")
    ),
]
"""Files by package, the shapes of their inputs, and the sizes of the runs."""
NUMBERS = {"sr": 16000}
"""Inputs that are no noise."""
TOLERANCE = {
    "ddddocr/common_old.onnx": 2e-2,  # doubles roundings of 8-bit integers from step to step
    "slovorez/models/slovorez-test/slovorez-test.onnx": 4e-3,  # float16
}
"""The largest difference, as a share of the largest element; 1e-3 for all others."""


def _feed(shape, name, dtype, rng, sizes):
    if name in NUMBERS:
        return np.array(NUMBERS[name], dtype)
    dims = [sizes.get(dim, dim) for dim in shape]
    if name.endswith("_lens"):
        return np.full(dims, sizes["samples"], dtype)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, 30, dims).astype(dtype)
    return (0.3 * rng.standard_normal(dims)).astype(dtype)


def difference(got, want):
    """The largest difference of two arrays, as a share of the largest element."""
    if want.dtype.kind != "f":
        return float(not np.array_equal(got, want))
    scale = max(1e-3, float(np.max(np.abs(want), initial=0)))
    return float(np.max(np.abs(got - want), initial=0)) / scale


def differences(path, shapes, runs):
    """Yield the difference of each run of a model from ONNX Runtime's."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    peer = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(7)
    with trireme.Session(path) as session:
        dtypes = {value.name: np.dtype(value.dtype) for value in session.graph.input_values()}
        for sizes in runs:
            feeds = {n: _feed(s, n, dtypes[n], rng, sizes) for n, s in shapes.items()}
            wanted, got = peer.run(None, feeds), session.run(feeds).values()
            pairs = list(zip(got, wanted, strict=True))
            assert [a.shape for a, _ in pairs] == [b.shape for _, b in pairs]
            yield max(difference(a, b) for a, b in pairs)


@pytest.mark.sweep
@pytest.mark.parametrize(("file", "shapes", "runs"), MODELS, ids=[one[0] for one in MODELS])
def test_a_packaged_model_opens_and_agrees(file, shapes, runs):
    package, _, rest = file.partition("/")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"package {package} is not installed")
    path = Path(next(iter(spec.submodule_search_locations))) / rest
    if not path.is_file():
        pytest.skip(f"this version of {package} has no {rest}")
    for found in differences(str(path), shapes, runs):
        assert found <= TOLERANCE.get(file, 1e-3)
