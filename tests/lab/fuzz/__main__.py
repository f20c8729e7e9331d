"""Compare trireme with ONNX Runtime or LiteRT on random graphs, with Python on random programs.

    python -m lab.fuzz --seeds 20000 --folder /tmp/failures
    python -m lab.fuzz --devices cpu,opencl,npu --forced --kinds any,half,stored
    python -m lab.fuzz --format tflite --seeds 2000
    python -m lab.fuzz --format python --seeds 1000

A failing graph is made small and written to the folder, with what to feed it.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

from lab.fuzz.campaign import ONNX, TFLITE, Report, campaign, in_every_way, on_devices
from lab.fuzz.campaign_python import campaign_python
from lab.fuzz.forcing import Ran, on_forced_devices, shares
from lab.fuzz.grow import KINDS
from lab.fuzz.worker import Worker
from trireme.backend.registry import open_device

BATCH = 20
FAMILIES = {"onnx": (ONNX, on_devices), "tflite": (TFLITE, in_every_way)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--format", choices=("onnx", "tflite", "python"), default="onnx")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds")
    parser.add_argument("--devices", default="cpu", help="devices, with commas between")
    parser.add_argument("--kinds", default="any", help=f"of graphs, likewise: {', '.join(KINDS)}")
    parser.add_argument(
        "--forced",
        action="store_true",
        help="put all that a device takes on that device, instead of searching",
    )
    parser.add_argument(
        "--unoptimised",
        action="store_true",
        help="have OpenCL's driver build kernels as they are written, in half the time",
    )
    parser.add_argument("--folder", type=Path, help="where failing models are written")
    args = parser.parse_args()
    devices = {name: open_device(name) for name in args.devices.split(",")}
    if args.unoptimised:
        devices["opencl"].programs.options.append("-cl-opt-disable")
    used, ran = list(devices.values()), Ran()
    total, last = Report(), args.first + args.seeds
    with Worker() as peer:
        if args.format == "python":
            run = partial(campaign_python, folder=args.folder)
        else:
            family, plain = FAMILIES[args.format]
            how = on_forced_devices(devices, ran) if args.forced else plain(used)
            kinds = args.kinds.split(",")
            options = {"run": how, "peer": peer, "folder": args.folder, "family": family}
            run = partial(campaign, kinds=kinds, **options)
        for first in range(args.first, last, BATCH):
            seeds = range(first, min(first + BATCH, last))
            report = run(seeds)
            total.counts += report.counts
            for text in report.failed:
                print(text, flush=True)
            print(f"to seed {seeds.stop - 1}: {total}", flush=True)
            for name in sorted({name for _, name in ran}):
                print(shares(ran, name), flush=True)
    cpu_s = sum(os.times()[:4])  # the peer's too, which has ended
    print(f"{cpu_s:.0f} s of CPU")


if __name__ == "__main__":
    main()
