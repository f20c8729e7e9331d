"""The command line: `trireme COMMAND ...`. Parses arguments, runs a command, maps errors to codes.

Exit codes: 0 ok, 1 comparison failed, 2 usage, 3 unsupported model, 4 bad file, 5 device error,
70 a fault of trireme itself, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from trireme import __version__
from trireme.support import errors
from trireme.support.interrupts import EXIT_CODE, end_on_interrupt, raise_on_interrupt
from trireme.tools import (
    calibrate,
    commands,
    demo,
    explain,
    machines,
    place,
    plan_capacity,
    profile,
    quantize,
    replay,
    serve,
    verify,
    whatif,
)
from trireme.tools.bench.command import ARGUMENTS as BENCH_ARGUMENTS
from trireme.tools.bench.command import bench
from trireme.tools.completion import complete, is_asked
from trireme.tools.described import add_described
from trireme.tools.number_options import positive, relative, whole
from trireme.tools.options import (
    Argument,
    add_buckets,
    add_device_choice,
    add_devices,
    add_holding,
    add_inputs,
    add_json,
    add_model,
    add_placing,
    add_states,
)
from trireme.tools.options import argument as _arg
from trireme.tools.parsed import use_lock
from trireme.tools.streams import discard, flush_errors, prepare_streams, say, show_warnings
from trireme.tools.stress import command as stress

EXIT_FAULT = 70
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.ModelFileError, 4),
    (OSError, 4),
    (errors.DeviceError, 5),
    (errors.CompileError, 5),
    (errors.RunError, 2),
    (errors.InternalError, EXIT_FAULT),
    (errors.TriremeError, 3),
    (MemoryError, EXIT_FAULT),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; expected errors show no traceback."""
    try:
        raise_on_interrupt()
        prepare_streams()
        show_warnings()
        return _run(arguments)
    except KeyboardInterrupt:
        end_on_interrupt()  # a second one comes often
        say("interrupted")
        return EXIT_CODE
    finally:
        end_on_interrupt()
        flush_errors()


def _run(arguments: Sequence[str] | None) -> int:
    parser = make_parser()
    complete(parser)
    options = parser.parse_args(arguments)
    try:
        use_lock(options)
        code = int(options.command(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # as of `| head`
        discard(sys.stdout)
        return 0
    except tuple(kind for kind, _ in EXIT_CODES) as error:
        say(_message(error))
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    except Exception as error:
        say(
            f"{traceback.format_exc()}This is a fault of trireme: {type(error).__name__}; "
            "please report it with the model"
        )
        return EXIT_FAULT


def _message(error: BaseException) -> str:
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return errors.shortened(f"{where}{error.strerror or error}")
    if isinstance(error, MemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {error}"


class _Parser(argparse.ArgumentParser):
    """A parser of one command, whose arguments may stand before, between and after its options."""

    _intermixes = True

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Return the options and what is unknown; the base class calls back for each part."""
        if self._subparsers is not None or not self._intermixes or is_asked():
            return super().parse_known_args(args, namespace)
        self._intermixes = False
        try:
            options, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixes = True
        if unknown:  # the base class would have the program's parser refuse them
            self.error(f"unknown arguments: {' '.join(unknown)}{self._nearest(unknown[0])}")
        return options, unknown

    def _nearest(self, unknown: str) -> str:
        """Return which option is meant by one that there is not."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown.partition("=")[0], flags, 1)
        return f"; {near[0]} is near" if near else ""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {errors.shortened(message)} (see {self.prog} --help)\n")


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
    "plan-capacity": (
        "model.onnx --qps 2000 --p99 50ms",
        "model.onnx --qps 500 --p99 20ms --measure --max-delay 2ms",
    ),
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
    "stress": (
        "",
        "--part mutants --size release --report stress.md",
        "--part mutants/onnx --seed 3 --case 1742",
    ),
    "replay": ("model.trm run1 --record", "model.trm run1"),
    "info": ("model.onnx --graph",),
    "devices": ("", "--soc rk3588"),
    "supported-ops": ("--table",),
    "calibrate": ("--devices cpu,opencl --threads 1,2", "--check model.trm"),
    "demo": ("", "--write digits"),
}
"""What follows `trireme COMMAND` in the examples of its help."""


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
        (*_ON_DEVICES, add_described),
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
    "plan-capacity": Subcommand(
        plan_capacity.plan,
        "plan how many replicas of a model answer a load in time",
        (add_model, add_device_choice, add_described),
        plan_capacity.ARGUMENTS,
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
    "stress": Subcommand(
        stress.stress,
        "try to break the engine: damaged files, faults, races, overload, a soak",
        (),
        stress.ARGUMENTS,
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


def _usage_of(one: argparse.Action) -> str:
    """Return how usage shows an argument without a flag."""
    name = str(one.metavar or one.dest)
    return {"+": f"{name} ...", "*": f"[{name} ...]"}.get(str(one.nargs), name)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(
        prog="trireme", description="Convert, place, run and explain models on CPU, OpenCL and NPU."
    )
    parser.add_argument("--version", action="version", version=f"trireme {__version__}")
    table = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = table.add_parser(
            name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog="\n".join(
                ["examples:", *(f"  trireme {name} {one}".rstrip() for one in EXAMPLES[name])]
            ),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for add in (*command.shared, add_json):
            add(sub)
        for flags, options in command.own:
            sub.add_argument(*flags, **options)
        given = [one for one in sub._actions if not one.option_strings]
        names = [_usage_of(one) for one in given]
        sub.usage = " ".join(["%(prog)s [options]", *names])
        sub.set_defaults(command=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
