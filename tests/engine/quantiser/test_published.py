"""Our int8 models beside the published ones of the same float models, on real inputs.

Ranges come from crops of photographs and windows of speech; other crops and windows are compared.
Where no file of floats is published, float is what the published integers mean. The rounding of the
published weights is then no error, which favours the published model.
"""

import wave

import numpy as np
import pytest
from float_twins import float_twin
from zoo import zoo_path

import trireme
from trireme.ops.integer.types import quantized
from trireme.quantiser.measure import Noise

SEED = 20261125
ALLOWED_DB = 0.3
PHOTOGRAPHS = ("cat.bmp", "grace_hopper.bmp", "parrot.jpg", "bird_segmentation.bmp")
SAMPLES, COMPARED = 96, 64
FRAMES = 5
"""The frames of log mel energies that the anomaly detector reads at once."""
BANDS = 40
COSINES = (
    np.cos(np.pi / BANDS * np.outer(np.arange(BANDS) + 0.5, np.arange(10))) * (2 / BANDS) ** 0.5
)
"""The cosines that turn logarithms of bands into cepstral coefficients."""


def crops(rng, count, size):
    """Random squares of photographs, some turned around, as [N,1,size,size,3] of 0..255."""
    pil = pytest.importorskip("PIL.Image")
    pictures = [pil.open(zoo_path(f"images/{name}")).convert("RGB") for name in PHOTOGRAPHS]
    made = []
    for i in range(count):
        picture = pictures[i % len(pictures)]
        side = int(min(picture.size) * rng.uniform(0.4, 1))
        left, top = (int(rng.integers(0, n - side + 1)) for n in picture.size)
        cut = picture.crop((left, top, left + side, top + side)).resize((size, size), pil.BILINEAR)
        pixels = np.asarray(cut, np.float32)
        made.append(pixels[:, ::-1] if rng.random() < 0.5 else pixels)
    return np.stack(made)[:, None]


def speech():
    """The zoo's speech, [N] of -1..1, and its rate."""
    with wave.open(str(zoo_path("images/speech.wav"))) as file:
        raw = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        rate, channels = file.getframerate(), file.getnchannels()
    return raw.reshape(-1, channels).mean(1) / 32768, rate


def mel_energies(sound, rate, length, step, bands):
    """Energies of mel bands in windows of a length, a step apart: [windows, bands]."""
    frames = np.lib.stride_tricks.sliding_window_view(sound, length)[::step]
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(length)))
    return spectrum @ mel_bands(np.fft.rfftfreq(length, 1 / rate), bands) + 1e-6


def speech_frames(rng, count):
    """Windows of log mel energies (dB) of the zoo's speech, as [N,1,640]."""
    sound, rate = speech()
    energies = 20 * np.log10(mel_energies(sound, rate, 1024, 512, 128))
    starts = rng.integers(0, len(energies) - FRAMES + 1, count)
    windows = np.stack([energies[start : start + FRAMES].reshape(1, -1) for start in starts])
    return (windows + rng.uniform(-10, 10, (count, 1, 1))).astype(np.float32)


def speech_cepstra(rng, count):
    """Ten cepstral coefficients of 49 windows (30 ms, 20 ms apart) of a second: [N,1,49,10,1].

    The speech is as loud as speech commands, give or take 6 dB.
    """
    sound, rate = speech()
    made = []
    for start in rng.integers(0, len(sound) - rate + 1, count):
        cut = sound[start : start + rate] * 10 ** rng.uniform(-0.3, 0.3)
        logs = np.log(mel_energies(cut, rate, 30 * rate // 1000, 20 * rate // 1000, BANDS))
        made.append(logs[:49] @ COSINES)
    return np.array(made, np.float32)[:, None, :, :, None]


def mel_bands(frequencies, count):
    """Triangles over equal steps of mel, [frequencies, count]."""
    mels = 1127 * np.log(1 + frequencies / 700)
    edges = np.linspace(30, mels[-1], count + 2)
    rising = (mels[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - mels[:, None]) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling))


CASES = {
    "resnet8": ("resnet8_cifar10_f32", "resnet8_cifar10_int8", lambda r, n: crops(r, n, 32)),
    "vww": ("vww_96_float", "vww_96_int8", lambda r, n: crops(r, n, 96) / 255),
    "ad01": ("ad01_fp32", "ad01_int8", speech_frames),
    "kws": (None, "kws_dscnn_int8", speech_cepstra),
    "mobilenet": (
        None,
        "tf2_mobilenet_v2_1.0_224_ptq",
        lambda r, n: crops(r, n, 224) / np.float32(127.5) - 1,
    ),
}
"""The file of floats (None where there is none), the published one, and inputs."""


def answers(graph, samples):
    """The real outputs; integer models take the nearest integers."""
    (given,), (made,) = graph.input_values(), graph.output_values()
    found = []
    with trireme.Session(graph, devices=["cpu"]) as session:
        for x in samples:
            if given.quant is not None:
                x = quantized(x, given.type)
            (y,) = session.run({given.name: x}).values()
            if made.quant is not None:
                y = (y.astype(np.float32) - made.quant.zero_point) * np.float32(made.quant.scale)
            found.append(y)
    return found


def noise(real, made):
    total = Noise()
    for right, found in zip(real, made, strict=True):
        total.add(right, found)
    return total


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "mobilenet")) for name in CASES],
)
def test_ours_agrees_with_float_as_well_as_the_published(name):
    print("seed", SEED)
    float_name, published_name, samples_of = CASES[name]
    published = trireme.convert(zoo_path(f"{published_name}.tflite"))
    if float_name is None:
        model = float_twin(published)
    else:
        model = trireme.convert(zoo_path(f"{float_name}.tflite"))
    rng = np.random.default_rng(SEED)
    (x,) = model.input_values()
    ours = trireme.quantize(model, {x.name: samples_of(rng, SAMPLES)})
    given = samples_of(rng, COMPARED)
    real = answers(model, given)
    theirs, mine = (noise(real, answers(graph, given)) for graph in (published, ours))
    line = "{}: published {:.1f} dB (moving {:.1f}), ours {:.1f} (moving {:.1f})"
    print(line.format(name, theirs.db, theirs.moving_db, mine.db, mine.moving_db))
    assert mine.db >= theirs.db - ALLOWED_DB
    assert mine.moving_db >= theirs.moving_db - ALLOWED_DB
