"""Options that several commands share, as argparse is told of them; `parsed` reads them."""

from __future__ import annotations

import argparse
from itertools import starmap
from typing import Any

from trireme.backend.device_kind import Option
from trireme.backend.registry import DEFAULT_DEVICE, device_names, kind_named
from trireme.placement.objective import OBJECTIVES
from trireme.support.limits import MOST_THREADS
from trireme.tools.number_options import MOST_SEED, whole

Argument = tuple[tuple[str, ...], dict[str, Any]]


def argument(*names: str, **options: Any) -> Argument:
    """Return an option of one command: its names, and what argparse is told about it."""
    return names, options


def option_group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Return a group of a parser's options, as help shows them; it is made when first asked for."""
    known = (group for group in parser._action_groups if group.title == title)
    return next(known, None) or parser.add_argument_group(title)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model argument and the shapes of inputs it leaves open."""
    group = option_group(parser, "model")
    group.add_argument("model", help="path of a .trm, .tflite, .onnx or .pt2 file")
    group.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,224,224",
        help="shape of an input that the model leaves open: sizes, or symbols such as seq<=512",
    )
    group.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="SYMBOL=128",
        help="size of a symbol in the shapes that the model leaves open",
    )
    group.add_argument(
        "--signature", metavar="NAME", help="name of one graph of a .tflite file with several"
    )
    group.add_argument(
        "--python-ops",
        metavar="FILE",
        help="Python file whose dict python_ops has the Python operators of the model, by name or "
        "by domain::Op of an .onnx file",
    )


def add_states(parser: argparse.ArgumentParser) -> None:
    """Add which outputs of the model are inputs of its next run."""
    group = option_group(parser, "model")
    group.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="INPUT=OUTPUT",
        help="keep an output and give it as an input of the next run: past=present, or "
        "past.*=present.* for many",
    )


def add_devices(parser: argparse.ArgumentParser) -> None:
    """Add the choice of devices, of threads, what goes with them, and dumps of the code."""
    group = option_group(parser, "devices")
    group.add_argument(
        "--threads",
        type=whole(1, MOST_THREADS),
        metavar="N",
        help="number of threads of the cpu device, or of each instance (default: one a core)",
    )
    group.add_argument(
        "--batch", type=whole(), metavar="N", help="size of the inputs' first axis, where it is 1"
    )
    for form, what in (("ir", "LLVM IR"), ("asm", "machine code")):
        group.add_argument(
            f"--dump-{form}",
            metavar="DIR",
            help=f"write the {what} of each kernel to a file in this folder",
        )
    add_device_choice(parser)
    add_placing(parser)


def add_device_choice(parser: argparse.ArgumentParser) -> None:
    """Add the choice of devices and what goes with it, but for the threads."""
    group = option_group(parser, "devices")
    parser.set_defaults(devices_given=False)
    group.add_argument(
        "--devices",
        default=DEFAULT_DEVICE,
        action=_Given,
        metavar="NAMES",
        help="devices to use: npu,opencl,cpu (default: cpu); cpu#1,cpu#2 are two devices, each "
        "with half of the cores",
    )
    for flag, declared in flagged_options().items():
        takes_value = declared[0][1].switched is None
        choice: dict[str, Any] = {} if takes_value else dict(action="store_true")
        group.add_argument(flag, help="; ".join(starmap(_flag_help, declared)), **choice)
    group.add_argument(
        "--fallback", action="store_true", help="go on without devices that fail, and report them"
    )


def flagged_options() -> dict[str, list[tuple[str, Option]]]:
    """Return the flags of devices: for each the options that it sets, with their kinds."""
    flags: dict[str, list[tuple[str, Option]]] = {}
    for name in device_names():
        for one in kind_named(name).declared():
            if one.flag:
                flags.setdefault(one.flag, []).append((name, one))
    return flags


def _flag_help(kind: str, one: Option) -> str:
    return f"{kind}: {'do not ' if one.default is True else ''}{one.help}"


def flag_name(flag: str) -> str:
    """Return the name under which argparse keeps what a flag gives."""
    return flag.removeprefix("--").replace("-", "_")


def flag_value(options: argparse.Namespace, one: Option) -> Any:
    """Return what the command line gives for an option of a device; None where it gives nothing."""
    given = vars(options)[flag_name(one.flag)]
    if one.switched is None:
        return given
    return one.switched if given else None


class _Given(argparse.Action):
    """Stores the value, and that there was one: --devices is not always asked for its default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, f"{self.dest}_given", True)


def add_placing(parser: argparse.ArgumentParser) -> None:
    """Add what decides which node runs where, and in which way it all runs."""
    group = option_group(parser, "placement")
    group.add_argument(
        "--mode",
        choices=("auto", "parallel", "serial"),
        default="auto",
        help="run tasks in parallel, one by one, or in the faster way (default: auto)",
    )
    group.add_argument(
        "--subgraphs",
        choices=("merged", "split"),
        default="merged",
        help="run one graph with early copies (default: merged), or region after region",
    )
    group.add_argument(
        "--execution",
        choices=("sunk", "interactive"),
        help="make each region a task (default: sunk), or each node",
    )
    group.add_argument(
        "--schedule",
        choices=("static", "dynamic"),
        default="static",
        help="plan all tasks ahead (default: static), or run the dataflow form of the graph",
    )
    group.add_argument(
        "--placement",
        metavar="FILE",
        help="use the placement of this lockfile, and its options where none are given",
    )
    add_holding(parser)
    group.add_argument(
        "--multi-device",
        choices=("significant", "any"),
        default="significant",
        help="use several devices if their gain exceeds the uncertainty of the estimates (default: "
        "significant), or for any predicted gain",
    )
    group.add_argument(
        "--measure",
        action="store_true",
        help="measure the best placements and each device alone, and keep the fastest",
    )
    group.add_argument(
        "--objective", choices=OBJECTIVES, help="quantity to minimise (default: makespan)"
    )
    group.add_argument(
        "--passes-off", default="", metavar="NAMES", help="optimiser passes to leave out: a,b"
    )


def add_holding(parser: argparse.ArgumentParser) -> None:
    """Add what holds nodes on devices, or splits them."""
    group = option_group(parser, "placement")
    group.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="NODE=DEVICE",
        help="put nodes on a device: NODE (its name or #12), FIRST..LAST, * or op:softmax",
    )
    group.add_argument(
        "--shard",
        action="append",
        default=[],
        metavar="NODE=cpu,npu:rows",
        help="shard nodes (also FIRST..LAST, or *) over devices by rows, channels or batch, at "
        ":CUT; or auto (default), or off",
    )


def add_buckets(parser: argparse.ArgumentParser) -> None:
    """Add the sizes that feeds are padded to."""
    option_group(parser, "model").add_argument(
        "--bucket",
        action="append",
        default=[],
        metavar="SYMBOL=64,128,512",
        help="sizes of a symbol that stays open; inputs are padded to the next larger one",
    )


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the ways to give inputs."""
    group = option_group(parser, "inputs")
    group.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=x.npy|random|zeros",
        help="value of an input; other inputs are random",
    )
    group.add_argument("--image", metavar="FILE", help="image file for the image input")
    group.add_argument(
        "--normalise",
        default="signed",
        choices=("signed", "unit", "imagenet", "none"),
        help="range of pixels as floats: -1..1 (default: signed), 0..1, ImageNet's mean and "
        "deviation, 0..255",
    )
    group.add_argument(
        "--seed",
        type=whole(0, MOST_SEED),
        default=0,
        metavar="N",
        help="seed of random inputs (default: 0)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the choice of JSON on standard output, or into a file."""
    group = option_group(parser, "output")
    group.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="print JSON, or write it to FILE"
    )
