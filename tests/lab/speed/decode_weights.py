"""Time decoding with the weights in fewer bits, beside float32 and ONNX Runtime, in turns.

    python -m lab.speed.export_decoders models
    python -m lab.speed.decode_weights models/gpt2_like.onnx --threads 1

A row has the tokens a second of the median step, and of the step at a tenth of the times.
"""

from __future__ import annotations

import argparse
import copy
import pathlib
import tempfile
import time

import numpy as np

import trireme
from lab.speed import decode

SCHEMES = {
    "int4, groups of 32": {"scheme": "weights_int4", "group": 32},
    "int4, groups of 128": {"scheme": "weights_int4", "group": 128},
    "int8, groups of 32": {"scheme": "weights_int8", "group": 32},
    "float16": {"scheme": "float16"},
}
TURN, MOST = 8, 96


def prepared(path: str, folder: str, threads: int) -> dict[str, decode.Decoding]:
    """Return the decodings by name; each has read the same prompt."""
    model = decode.Decoder(path)
    prompt = np.random.default_rng(0).integers(0, 1000, (1, 4))
    steps = {"float32": decode.ours(model, threads, MOST, True)}
    for name, options in SCHEMES.items():
        smaller = copy.copy(model)
        smaller.path = str(pathlib.Path(folder) / f"{len(steps)}.trm")
        trireme.save(trireme.quantize(path, **options), smaller.path)
        steps[name] = decode.ours(smaller, threads, MOST, True)
    steps["ONNX Runtime float32"] = decode.ort_run(model, threads)
    return {name: decode.Decoding(step, prompt, time.perf_counter) for name, step in steps.items()}


def main() -> None:
    """Decode in turns and print a row for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = prepared(given.model, folder, given.threads)
        for turn in range(MOST // TURN):
            for name in sorted(rows, reverse=turn % 2 == 1):
                rows[name].go(TURN)
    for name, row in rows.items():
        median, tenth = (decode.rate(row.seconds, part) for part in (0.5, 0.1))
        print(f"{given.threads} threads, {name}: median {median:.0f}, tenth {tenth:.0f} tokens/s")


if __name__ == "__main__":
    main()
