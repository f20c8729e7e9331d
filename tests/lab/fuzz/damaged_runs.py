"""Damage model files at random; convert, load and run what is left, here and on a peer.

As a program, `python -m lab.fuzz.damaged_runs SIDE FORMAT SEED COUNT FOLDER FIRST`, in bounded
memory and time, with seed files on standard input (mutations.py):

* side "trireme" runs each damaged file, and writes inputs and outputs of a run to the folder
* side "peer" runs those files on ONNX Runtime, on LiteRT, or (.trm) on the numpy references, and
  compares. A peer may crash or refuse what we take.
"""

import pathlib
import sys
import warnings

import numpy as np

from lab.stress.bounded import try_cases
from lab.stress.damaged_files import open_shapes, run
from lab.stress.mutations import damaged_cases, read_seeds
from trireme.ir.interpreter import run_reference
from trireme.model_file.convert import convert

RTOL, ROUNDED_RTOL = 1e-3, 3e-2
"""Of floats, relative to the largest: a damaged weight makes sums of numbers of any size, and where
floats are rounded to levels on the way a last bit moves a level."""


MOST_RATIO = 2.0**30
"""Between scales of one node, beyond which LiteRT's multiplier overflows; ours saturate."""
LARGEST = float(np.finfo(np.float32).max)


class Refused(Exception):
    """A peer does not take a file."""


def greatest_ratio(graph):
    """Return the greatest ratio between scales of the values of one node."""
    most = 1.0
    for node in graph.nodes:
        types = [graph.type(value) for value in (*node.used, *node.outputs)]
        scales = [scale for type_ in types if type_.quant for scale in type_.quant.scales]
        most = max(most, max(scales, default=1.0) / min(scales, default=1.0))
    return most


def attempt_here(format, folder):
    """Return what opens and runs a damaged file on the cpu."""

    def attempt(case):
        number, data = case
        graph = convert(data, format=format)
        ran = run(graph, number)
        if ran is None:
            return "opened"
        feeds, outputs = ran
        if any(array.dtype.kind == "O" for array in outputs):
            return "ran"
        names = np.array(list(feeds), "U")
        arrays = {f"i{k}": array for k, array in enumerate(feeds.values())}
        arrays |= {f"o{k}": array for k, array in enumerate(outputs)}
        if greatest_ratio(graph) > MOST_RATIO:
            return "ran"
        rounds = any(node.op in ("round", "quantize", "quantize_linear") for node in graph.nodes)
        arrays |= {"rtol": np.array(ROUNDED_RTOL if rounds else RTOL)}
        np.savez(folder / f"{number}.npz", names=names, outputs=len(outputs), **arrays)
        return "ran"

    return attempt


def attempt_there(format, folder):
    """Return what runs a damaged file on the peer and compares with what ran here."""
    answer = {"onnx": run_onnx, "tflite": run_tflite, "trm": run_trm}[format]

    def attempt(case):
        number, data = case
        path = folder / f"{number}.npz"
        if not path.exists():
            return "skipped"
        stored = np.load(path)
        feeds = {str(name): stored[f"i{k}"] for k, name in enumerate(stored["names"])}
        ours = [stored[f"o{k}"] for k in range(int(stored["outputs"]))]
        try:
            theirs = answer(data, feeds)
        except Refused as error:
            return f"refused {error}"
        why = difference(ours, theirs, float(stored["rtol"]))
        if why and format == "tflite" and difference(theirs, answer(data, feeds, fast=True), 0.1):
            return "refused: LiteRT's kernels contradict each other"
        return f"wrong {why}" if why else "equal"

    return attempt


def run_onnx(data, feeds):
    """Return ONNX Runtime's outputs."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
        wanted = {value.name for value in session.get_inputs()}
        return session.run(None, {name: feeds[name] for name in wanted})
    except Exception as error:
        raise Refused(str(error)[:200]) from error


def run_tflite(data, feeds, fast=False):
    """Return the outputs of LiteRT's reference kernels or of its fast ones; inputs go by their
    places.
    """
    from litert import interpreter

    try:
        made = interpreter(data, reference=not fast, keep=not fast)
        for detail, array in zip(made.get_input_details(), feeds.values(), strict=True):
            made.set_tensor(detail["index"], array)
        made.invoke()
        return [made.get_tensor(detail["index"]) for detail in made.get_output_details()]
    except Exception as error:
        raise Refused(str(error)[:200]) from error


def run_trm(data, feeds):
    """Return the references' outputs of the graph as it is in the file."""
    graph = convert(data, format="trm")
    if open_shapes(graph):
        raise Refused("the references want shapes")
    found = run_reference(graph, feeds)
    return [found[value.name] for value in graph.output_values()]


def difference(ours, theirs, rtol):
    """Say how two lists of outputs differ; "" where they agree.

    LiteRT clamps to the largest float, which is as good as infinity.
    """
    if len(ours) != len(theirs):
        return f"{len(ours)} outputs, the peer has {len(theirs)}"
    for k, (a, b) in enumerate(zip(ours, map(np.asarray, theirs), strict=True)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"output {k} is {a.dtype}{a.shape}, the peer's {b.dtype}{b.shape}"
        wide_a, wide_b = a.astype(np.complex128), b.astype(np.complex128)
        finite = np.abs(wide_b) < LARGEST
        if not np.array_equal(np.abs(wide_a) < LARGEST, finite):
            return f"output {k}: some elements are finite on one side"
        if not finite.any():
            continue
        apart = np.abs(wide_a[finite] - wide_b[finite]).max()
        allowed = 1 if a.dtype.itemsize == 1 else rtol * np.abs(wide_b[finite]).max()
        if apart > allowed:
            return f"output {k}: off by {apart:.3g}, allowed {allowed:.3g}"
    return ""


def main(side, format, seed, count, folder, first):
    warnings.simplefilter("ignore")
    cases = damaged_cases(format, read_seeds(), int(seed), int(count))
    attempt = {"trireme": attempt_here, "peer": attempt_there}[side]
    numbered = ((number, (number, data)) for number, data in cases)
    try_cases(numbered, attempt(format, pathlib.Path(folder)), int(first))


if __name__ == "__main__":
    main(*sys.argv[1:])
