"""Compare trireme with ONNX Runtime, or with LiteRT, on many random graphs.

    python tests/support/fuzz.py --seeds 20000 --folder /tmp/failures
    python tests/support/fuzz.py --format tflite --seeds 2000

A failing graph is made small and written to the folder, with what to feed it.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

from fuzzing.campaign import Report, campaign, on_devices
from fuzzing.campaign_tflite import campaign_tflite

from trireme.opening import open_device

BATCH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--format", choices=("onnx", "tflite"), default="onnx")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds")
    parser.add_argument("--devices", default="cpu", help="devices, with commas between")
    parser.add_argument("--folder", type=Path, help="where failing models are written")
    args = parser.parse_args()
    devices = [open_device(name) for name in args.devices.split(",")]
    run = partial(campaign, run=on_devices(devices), folder=args.folder)
    if args.format == "tflite":
        run = partial(campaign_tflite, devices=devices, folder=args.folder)
    total, start, last = Report(), time.process_time(), args.first + args.seeds
    for first in range(args.first, last, BATCH):
        seeds = range(first, min(first + BATCH, last))
        report = run(seeds)
        total.counts += report.counts
        for text in report.failed:
            print(text, flush=True)
        print(f"to seed {seeds.stop - 1}: {total}", flush=True)
    print(f"{time.process_time() - start:.0f} s of CPU")


if __name__ == "__main__":
    main()
