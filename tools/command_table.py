"""The commands of the command line: what each runs, its help, its arguments and its examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from trireme.tools import (
    calibrate,
    commands,
    demo,
    explain,
    machines,
    place,
    profile,
    quantize,
    replay,
    serve,
    verify,
    whatif,
)
from trireme.tools.bench.command import ARGUMENTS as BENCH_ARGUMENTS
from trireme.tools.bench.command import bench
from trireme.tools.described import add_described
from trireme.tools.number_options import positive, relative, whole
from trireme.tools.options import (
    Argument,
    add_buckets,
    add_device_choice,
    add_devices,
    add_holding,
    add_inputs,
    add_model,
    add_placing,
    add_states,
)
from trireme.tools.options import argument as _arg

Adder = Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True)
class Subcommand:
    """A command: what it runs, its line of help, the groups of options it shares, and its own."""

    run: Callable[[argparse.Namespace], int]
    help: str
    shared: tuple[Adder, ...] = ()
    own: tuple[Argument, ...] = ()


EXAMPLES: dict[str, tuple[str, ...]] = {
    "convert": (
        "model.onnx -o model.trm",
        "model.tflite --optimise",
        "model.tflite -o model.onnx",
        "program.py:collatz --input n=int64[]",
    ),
    "run": (
        "model.trm --image cat.jpg --labels labels.txt --devices npu,cpu",
        "model.onnx --shape input=1,3,224,224 --input input=x.npy --output y.npz",
    ),
    "profile": (
        "model.trm --devices opencl,cpu --trace t.json",
        "model.trm --soc rk3588 --trace predicted.json",
    ),
    "explain": (
        "model.trm --devices npu,opencl,cpu",
        "model.trm op:softmax conv1 --devices npu,cpu",
        "model.trm --soc rk3588 --trace t.json",
    ),
    "place": (
        "model.trm --devices npu,opencl,cpu --lock placement.toml",
        "model.trm --check placement.toml --tolerance 5%",
        "model.trm --soc rk3588 --prove 60",
    ),
    "whatif": ("model.trm --soc rk3588 --vary link_bandwidth=0.5..16",),
    "verify": (
        "model.onnx",
        "model.onnx --devices cpu,opencl --per-node",
        "m8.trm --against model.onnx --data samples.npz",
    ),
    "quantize": (
        "model.onnx --data samples.npz -o m8.trm",
        "model.tflite --loader samples.py:images --keep-float op:softmax --report q.json",
        "model.onnx --data d.npz --max-loss 0.01 --metric top1 --labels y.npy --soc rk3588",
    ),
    "bench": ("model.onnx --against onnxruntime,openvino --threads 1,2",),
    "serve": (
        "model.onnx --http 8000",
        "--repository models --grpc 8001 --threads 2",
        "--config serve.toml --token-file token",
    ),
    "replay": ("model.trm run1 --record", "model.trm run1"),
    "info": ("model.onnx --graph",),
    "devices": ("", "--soc rk3588"),
    "supported-ops": ("--table",),
    "calibrate": ("--devices cpu,opencl --threads 1,2", "--check model.trm"),
    "demo": ("", "--write digits"),
}
"""The words after `trireme COMMAND` in the examples of its help."""


_ON_DEVICES = (add_model, add_devices)
COMMANDS: dict[str, Subcommand] = {
    "convert": Subcommand(
        commands.convert,
        "write a model as a .trm or .onnx file",
        (add_model,),
        (
            _arg(
                "-o",
                "--output",
                metavar="FILE",
                help="path of the .trm or .onnx file (default: a .trm beside the model)",
            ),
            _arg("--optimise", action="store_true", help="store the optimised graph"),
            _arg(
                "--input",
                action="append",
                default=[],
                metavar="NAME=float32[n<=8,3]",
                help="type of a parameter of FILE.py:FUNCTION, whose code runs",
            ),
        ),
    ),
    "run": Subcommand(
        commands.run,
        "run a model once and show or store its outputs",
        (*_ON_DEVICES, add_buckets, add_inputs, add_states),
        (
            _arg("--load-state", metavar="FILE", help="begin with the states of this .npz file"),
            _arg("--save-state", metavar="FILE", help="write the states to this .npz file"),
            _arg("--output", metavar="FILE", help="write the outputs to this .npz file"),
            _arg("--labels", metavar="FILE", help="text file of class names, one a line"),
            _arg(
                "--top",
                type=whole(),
                default=5,
                metavar="N",
                help="number of classes to show (default: 5)",
            ),
            _arg("--nodes", action="store_true", help="show what each task made, as it runs"),
        ),
    ),
    "profile": Subcommand(
        profile.profile,
        "show where the time and the bytes of a run go",
        (*_ON_DEVICES, add_described, add_buckets, add_inputs, add_states),
        profile.ARGUMENTS,
    ),
    "explain": Subcommand(
        explain.explain,
        "explain where each node runs, and what the other devices would cost",
        (*_ON_DEVICES, add_described, add_inputs),
        explain.ARGUMENTS,
    ),
    "place": Subcommand(
        place.place_model,
        "place a model without running it; prove, lock or check the placement",
        (*_ON_DEVICES, add_described),
        place.ARGUMENTS,
    ),
    "whatif": Subcommand(
        whatif.whatif,
        "place a model on variants of a described machine",
        (add_model, add_holding),
        whatif.ARGUMENTS,
    ),
    "verify": Subcommand(
        verify.verify,
        "compare results with another runtime, or node by node with the references",
        (*_ON_DEVICES, add_inputs),
        (
            _arg(
                "--tolerance",
                type=relative,
                metavar="SHARE",
                help="largest allowed difference of floats, as a share of the largest value "
                "(default: 1e-4, or 3 steps of a quantised output; per node: that of the op)",
            ),
            _arg(
                "--units",
                type=whole(0),
                metavar="N",
                help="largest allowed difference of integers (default: 1; per node: 0)",
            ),
            _arg(
                "--per-node",
                action="store_true",
                help="compare every intermediate value with the numpy references",
            ),
            _arg(
                "--all",
                action="store_true",
                help="with --per-node: list the values that agree as well",
            ),
            _arg(
                "--against",
                dest="against_model",
                metavar="MODEL",
                help="compare with this model node by node on the samples of --data",
            ),
            _arg("--data", metavar="FILE", help="with --against: sample inputs, .npz or .npy"),
            _arg(
                "--limit-db",
                type=positive,
                default=20.0,
                metavar="DB",
                help="with --against: the least signal-to-noise of a good value (default: 20)",
            ),
        ),
    ),
    "quantize": Subcommand(
        quantize.quantize_model,
        "turn a float model into integers, with ranges from sample inputs",
        (add_model,),
        quantize.ARGUMENTS,
    ),
    "bench": Subcommand(
        bench,
        "time models beside other runtimes",
        (add_device_choice, add_placing, add_inputs),
        BENCH_ARGUMENTS,
    ),
    "serve": Subcommand(
        serve.serve, "answer requests for models over HTTP and gRPC", (), serve.ARGUMENTS
    ),
    "replay": Subcommand(
        replay.replay,
        "record a run, or compare a run with a record bit for bit",
        (*_ON_DEVICES, add_inputs),
        (
            _arg("bundle", help="folder of the recorded run"),
            _arg("--record", action="store_true", help="record a run in the folder"),
            _arg(
                "--against", metavar="BUNDLE", help="compare with this bundle instead of a new run"
            ),
        ),
    ),
    "info": Subcommand(
        commands.info,
        "show what a model contains",
        (add_model,),
        (_arg("--graph", action="store_true", help="print every node"),),
    ),
    "devices": Subcommand(
        machines.devices,
        "show the devices of this machine, or of a described one",
        (),
        machines.ARGUMENTS,
    ),
    "supported-ops": Subcommand(
        commands.supported_ops,
        "show which device has a kernel for which op",
        (),
        (
            _arg(
                "--table",
                action="store_true",
                help="print the kernel tables: op and layout, then dtypes",
            ),
        ),
    ),
    "calibrate": Subcommand(
        calibrate.calibrate,
        "measure this machine, for better predictions",
        (add_device_choice,),
        calibrate.ARGUMENTS,
    ),
    "demo": Subcommand(demo.demo, "run a small classifier on three devices", (), demo.ARGUMENTS),
}
