"""Compare trireme with ONNX Runtime on many random graphs.

    python tests/support/fuzz.py --seeds 20000 --devices cpu --folder /tmp/failures

A failing graph is made small and written to the folder, with what to feed it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from fuzzing.campaign import Report, campaign, on_devices

from trireme.opening import open_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds")
    parser.add_argument("--devices", default="cpu", help="devices, with commas between")
    parser.add_argument("--folder", type=Path, help="where failing models are written")
    args = parser.parse_args()
    devices = [open_device(name) for name in args.devices.split(",")]
    total, start = Report(), time.process_time()
    for first in range(args.first, args.first + args.seeds, 100):
        seeds = range(first, min(first + 100, args.first + args.seeds))
        report = campaign(seeds, on_devices(devices), args.folder)
        total.counts += report.counts
        for text in report.failed:
            print(text, flush=True)
        print(f"to seed {seeds.stop - 1}: {total}", flush=True)
    print(f"{time.process_time() - start:.0f} s of CPU")


if __name__ == "__main__":
    main()
