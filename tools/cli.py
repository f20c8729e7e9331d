"""The command line: `trireme COMMAND ...`. Parses arguments, runs a command, maps errors to codes.

Exit codes: 0 ok, 1 comparison failed, 2 usage, 3 unsupported model, 4 bad file, 5 device error,
70 a fault of trireme itself, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from trireme import errors
from trireme.tools import commands, demo, verify
from trireme.tools.options import add_devices, add_inputs, add_json, add_model

EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.ModelFileError, 4),
    (OSError, 4),
    (errors.DeviceError, 5),
    (errors.CompileError, 5),
    (errors.RunError, 2),
    (errors.InternalError, 70),
    (errors.TriremeError, 3),
    (MemoryError, 70),
    (KeyboardInterrupt, 130),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; expected errors show no traceback."""
    parser = make_parser()
    try:
        options = parser.parse_args(arguments)
        return int(options.command(options))
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except tuple(kind for kind, _ in EXIT_CODES) as error:
        print(_message(error), file=sys.stderr)
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def _message(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return f"{type(error).__name__}: {error}"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="trireme", description="Convert, place, run and explain models on CPU, OpenCL and NPU."
    )
    commands_of = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")

    sub = commands_of.add_parser("convert", help="write a model as a .trm file")
    add_model(sub)
    sub.add_argument("-o", "--output", help="the .trm file (default: beside the model)")
    sub.add_argument("--optimise", action="store_true", help="store the optimised graph")
    add_json(sub)
    sub.set_defaults(command=commands.convert)

    sub = commands_of.add_parser("run", help="run a model once and show or store its outputs")
    add_model(sub)
    add_devices(sub)
    add_inputs(sub)
    sub.add_argument("--output", help="store the outputs in this .npz file")
    sub.add_argument("--labels", help="a text file of class names, a line each")
    sub.add_argument("--top", type=int, default=5, help="how many classes to show")
    add_json(sub)
    sub.set_defaults(command=commands.run)

    sub = commands_of.add_parser("profile", help="where every microsecond and byte went")
    add_model(sub)
    add_devices(sub)
    add_inputs(sub)
    sub.add_argument("--runs", type=int, default=20, help="runs that count")
    sub.add_argument("--warmup", type=int, default=3, help="runs before them")
    sub.add_argument("--trace", help="write a Chrome trace (open it in ui.perfetto.dev)")
    add_json(sub)
    sub.set_defaults(command=commands.profile)

    sub = commands_of.add_parser("explain", help="why every node is where it is")
    add_model(sub)
    add_devices(sub)
    sub.add_argument("--plan", action="store_true", help="show the tasks and arenas as well")
    add_json(sub)
    sub.set_defaults(command=commands.explain)

    sub = commands_of.add_parser("verify", help="compare with onnxruntime or LiteRT")
    add_model(sub)
    add_devices(sub)
    add_inputs(sub)
    sub.add_argument("--tolerance", type=float, default=1e-4,
                     help="of float outputs, relative to the largest value")  # fmt: skip
    sub.add_argument("--units", type=int, default=1, help="tolerance of integer outputs, in units")
    add_json(sub)
    sub.set_defaults(command=verify.verify)

    sub = commands_of.add_parser("info", help="what is in a model")
    add_model(sub)
    sub.add_argument("--graph", action="store_true", help="print every node")
    add_json(sub)
    sub.set_defaults(command=commands.info)

    sub = commands_of.add_parser("devices", help="the devices of this machine")
    add_json(sub)
    sub.set_defaults(command=commands.devices)

    sub = commands_of.add_parser("supported-ops", help="which device has a kernel for which op")
    add_json(sub)
    sub.set_defaults(command=commands.supported_ops)

    sub = commands_of.add_parser("calibrate", help="measure this machine, for better placements")
    add_devices(sub)
    sub.add_argument("-o", "--output", help="the calibration file (default: this user's)")
    add_json(sub)
    sub.set_defaults(command=commands.calibrate)

    sub = commands_of.add_parser("demo", help="a small classifier over three devices")
    add_json(sub)
    sub.set_defaults(command=demo.demo)
    return parser


if __name__ == "__main__":
    sys.exit(main())
