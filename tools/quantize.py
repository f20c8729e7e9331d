"""`trireme quantize`: a float model and sample inputs become a model of integers."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trireme.ir.graph import Graph
from trireme.model_file import save
from trireme.model_file.export import export
from trireme.quantiser.quantize import quantize
from trireme.quantiser.ranges import METHODS
from trireme.quantiser.repair import AUTO, NONE, REPAIRS
from trireme.quantiser.scheme import GROUPS, SCHEMES
from trireme.support.errors import RunError
from trireme.support.limits import MOST_THREADS
from trireme.support.units import bytes_text
from trireme.tools.commands import load
from trireme.tools.image import NORMALISATIONS, load_images
from trireme.tools.loss_budget import BUDGET_ARGUMENTS, budget_options
from trireme.tools.number_options import MOST_SEED, number_or_none, whole
from trireme.tools.options import argument
from trireme.tools.output import emit
from trireme.tools.programs import load_code
from trireme.tools.progress import Progress

_SAME = {"mobilenet": "signed"}
PREPROCESSES = (*NORMALISATIONS, *_SAME)
"""How pixels become numbers; another name for one of tools/image.py in _SAME."""
ARGUMENTS = (
    argument(
        "--data",
        metavar="FILE",
        help="sample inputs: an .npz file with an array for each input, samples along its first "
        "axis; an .npy file for one input; a folder of them; a folder of pictures with "
        "--preprocess; or random",
    ),
    argument(
        "--preprocess",
        choices=PREPROCESSES,
        help="how the pixels of a folder of pictures become numbers: imagenet subtracts the mean "
        "and divides by the standard deviation, mobilenet and signed give -1..1, unit 0..1, none "
        "0..255",
    ),
    argument(
        "--loader",
        metavar="MODULE:FUNCTION",
        help="function without arguments that returns sample inputs; MODULE may be a .py file, "
        "whose code runs",
    ),
    argument(
        "-o",
        "--output",
        metavar="FILE",
        help="path of the .trm file (default: MODEL_int8.trm beside the model)",
    ),
    argument(
        "--scheme",
        metavar="NAME",
        help=f"the integers of values and weights, one of {', '.join(SCHEMES)} (default: what the "
        "devices of --devices or --soc run, else int8); a scheme of weights needs no --data",
    ),
    argument(
        "--weights",
        choices=("int4", "int8"),
        help="make integers of weights alone, in groups: the scheme weights_int4 or weights_int8",
    ),
    argument(
        "--group",
        type=whole(min(GROUPS), max(GROUPS)),
        choices=GROUPS,
        help="how many weights along the depth share a scale (default: 32)",
    ),
    argument(
        "--ranges",
        default=AUTO,
        choices=(AUTO, *METHODS),
        help="how the range of a value is taken from the samples (default: auto, which measures "
        "several ways)",
    ),
    argument(
        "--keep-float",
        action="append",
        default=[],
        metavar="NODE",
        help="node that stays float, by name, or op:NAME for all nodes of an op",
    ),
    argument(
        "--io",
        default="float32",
        choices=("float32", "int8", "uint8", "int16"),
        help="dtype of the model's inputs and outputs (default: float32)",
    ),
    argument(
        "--products",
        default=AUTO,
        choices=(AUTO, "float32", "integers"),
        help="what products make of integers: integers run on every device, float32 on the cpu "
        "(default: auto, which makes floats in a transformer that gains by it, unless a device of "
        "--devices or --soc takes integers alone)",
    ),
    argument(
        "--repairs",
        default=AUTO,
        metavar="NAMES",
        help="repairs to try, each kept only if it helps: auto, none, or some with commas between: "
        + ", ".join(REPAIRS),
    ),
    argument(
        "--round-limit-gflop",
        type=number_or_none,
        default=1000.0,
        metavar="N",
        help="work for the rounding of weights by the error of the outputs, in billions of "
        "operations, 0 to leave it out (default: 1000)",
    ),
    argument(
        "--explain",
        action="store_true",
        help="measure which nodes make the error, and what each would gain as float",
    ),
    *BUDGET_ARGUMENTS,
    argument("--report", metavar="FILE", help="write the report to this JSON file"),
    argument(
        "--export",
        action="append",
        default=[],
        metavar="FILE",
        help="write the model as this .tflite or .onnx file too (may be given again)",
    ),
    argument(
        "--threads",
        type=whole(1, MOST_THREADS),
        metavar="N",
        help="number of threads (default: one a core)",
    ),
    argument(
        "--seed",
        type=whole(0, MOST_SEED),
        default=0,
        metavar="N",
        help="seed of random samples (default: 0)",
    ),
)


def quantize_model(options: argparse.Namespace) -> int:
    """Quantise a model, write it, and show the report."""
    if options.data and options.loader:
        raise RunError("--data and --loader both give samples; give one of them")
    graph, progress = load(options), Progress()
    made = quantize(
        graph,
        _samples(options, graph),
        scheme=_scheme(options),
        group=options.group,
        ranges=options.ranges,
        keep_float=options.keep_float,
        io=options.io,
        products=options.products,
        repairs=_repairs(options.repairs),
        round_limit_gflop=options.round_limit_gflop,
        explain=options.explain,
        **budget_options(options),
        seed=options.seed,
        threads=options.threads,
        progress=progress,
    )
    source = Path(options.model)
    target = Path(
        options.output or source.with_name(f"{source.stem}_{made.quantization.scheme}.trm")
    )
    save(made, target)
    for path in options.export:
        export(made, path)
    progress.done()
    report = made.quantization
    if options.report:
        Path(options.report).write_text(json.dumps(report.to_json(), indent=1) + "\n")
    nbytes = target.stat().st_size
    files = {"output": str(target), "exported": options.export}
    data = {**files, "bytes": nbytes, "report": report.to_json()}
    emit(options, data, f"{target}: {bytes_text(nbytes)}\n{report}")
    return 0


def _scheme(options: argparse.Namespace) -> str | None:
    """Return the scheme of the options, None where they leave it open.

    Errors: RunError, if --weights and --scheme name different ones
    """
    named = f"weights_{options.weights}" if options.weights else None
    if named and options.scheme not in (None, named):
        raise RunError(f"--weights {options.weights} is scheme {named}, --scheme {options.scheme}")
    return named or options.scheme


def _repairs(names: str) -> str | list[str]:
    return names if names in (AUTO, NONE) else names.split(",")


def _samples(options: argparse.Namespace, graph: Graph) -> Any:
    """Return what --data, --preprocess and --loader name.

    Errors: RunError, if --preprocess has no folder of pictures, or the model has several inputs
    """
    if options.loader:
        return _loader(options.loader)
    if not options.preprocess:
        return options.data
    if not options.data or not Path(options.data).is_dir():
        raise RunError("--preprocess is for a folder of pictures: --data FOLDER")
    inputs = list(graph.input_values())
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs)
        raise RunError(f"--preprocess is for models of one input, and this one has {names}")
    normalise = _SAME.get(options.preprocess, options.preprocess)
    return load_images(options.data, inputs[0], normalise)


def _loader(name: str) -> Callable[[], Iterable[Any]]:
    """Return the function that MODULE:FUNCTION names.

    Errors: RunError, if there is none; ConvertError, if its file raises
    """
    module, colon, function = name.rpartition(":")
    if not colon or not module or not function:
        raise RunError(f"--loader {name}: expected MODULE:FUNCTION")
    if module.endswith(".py"):
        code = load_code(Path(module), "--loader")
    else:
        sys.path.insert(0, "")
        try:
            code = importlib.import_module(module)
        except ImportError as error:
            fix = "name a module, or a file that ends in .py"
            raise RunError(f"--loader {name}: {error}", fix=fix) from error
        finally:
            sys.path.remove("")
    found = getattr(code, function, None)
    if not callable(found):
        raise RunError(f"--loader {name}: {module} has no function {function}")
    loader: Callable[[], Iterable[Any]] = found
    return loader
