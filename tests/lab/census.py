"""Convert every layer and function that torch's own tests sample, and compare each with torch.

    python -m lab.census layers --page
    python -m lab.census functions --only fft --samples 4

`--page` prints the lines of docs/how-to/convert-pytorch.md that count the layers.

Importing this module needs torch. torch.testing._internal has the samples: module_db of layers,
op_db of functions. Classes that module_db leaves out have samples here.
"""

import argparse
import copy
import random
import sys
import types
import unittest
import warnings
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import _pytree

import trireme
from trireme.ir.interpreter import interpret
from trireme.support.errors import ConvertError, TriremeError

if "expecttest" not in sys.modules:  # torch's samples stand beside a base class of its tests
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402

SEED = 20261126
TOLERANCE = 1e-4
SAMPLES = 2
AGREES, REFUSED, NOT_EXPORTED, WRONG = "agrees", "refused", "not exported", "wrong"
NOT_COMPARED = "not compared"
"""What becomes of a sample. Not compared: nothing real comes in, or torch cannot run it."""


@dataclass
class Sample:
    """A call: a function or a layer, its arguments, and those by name."""

    function: object
    args: tuple
    kwargs: dict = field(default_factory=dict)


class Call(nn.Module):
    """A sample as a module of its tensors; all other arguments are constants.

    Results are real, as those of a graph: complex ones become pairs of parts.
    """

    def __init__(self, sample):
        super().__init__()
        self.function = sample.function
        leaves, self.tree = _pytree.tree_flatten((sample.args, sample.kwargs))
        self.leaves = [None if isinstance(one, torch.Tensor) else one for one in leaves]
        self.places = [k for k, one in enumerate(leaves) if isinstance(one, torch.Tensor)]
        self.inputs = tuple(leaves[k].detach().clone() for k in self.places)

    def forward(self, *tensors):
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = _pytree.tree_unflatten(leaves, self.tree)
        return _pytree.tree_map(as_real, self.function(*args, **kwargs))


def as_real(value):
    return (
        torch.view_as_real(value.resolve_conj())
        if torch.is_tensor(value) and value.is_complex()
        else value
    )


def layers():
    """Yield (class name, makers of samples) for every layer of torch.nn that can be made."""
    known = {}
    for info in module_db:
        if info.module_cls.__module__.startswith("torch.nn.modules"):
            known[info.module_cls.__name__] = info
    for name in sorted(vars(nn)):
        kind = getattr(nn, name)
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)) or name in NO_LAYERS:
            continue
        if name in OWN:
            yield name, (lambda name=name: OWN[name]())
        elif name in known:
            yield name, (lambda info=known[name]: _module_samples(info))


def _module_samples(info):
    for given in info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=False
    ):
        if given.forward_input is None:
            continue
        made, call = given.constructor_input, given.forward_input
        layer = info.module_cls(*made.args, **made.kwargs).eval()
        if any(isinstance(part, LazyModuleMixin) for part in layer.modules()):
            with torch.no_grad():  # a lazy layer finds its sizes
                layer(*copy.deepcopy(call.args), **copy.deepcopy(call.kwargs))
        yield Sample(layer, call.args, call.kwargs)


def functions():
    """Yield (name, makers of samples) for every function that torch's own tests sample."""
    for info in op_db:
        dtypes = (torch.float32, torch.int64, torch.bool)
        dtype = next((d for d in dtypes if info.supports_dtype(d, "cpu")), None)
        if dtype is not None:
            yield info.full_name, (lambda info=info, dtype=dtype: _op_samples(info, dtype))


def _op_samples(info, dtype):
    for given in info.sample_inputs("cpu", dtype, requires_grad=False):
        yield Sample(info.op, (given.input, *given.args), given.kwargs)


def spread(makers, most):
    """Return at most `most` samples, spread over all."""
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    random.seed(SEED)
    every = list(makers())
    places = np.linspace(0, len(every) - 1, min(most, len(every))).round().astype(int)
    return [every[k] for k in places]


def examine(sample):
    """Return (verdict, why) of one call."""
    module = Call(sample).eval()
    if not module.inputs or any(one.is_complex() for one in module.inputs):
        return NOT_COMPARED, "no real tensor comes in"
    try:
        with torch.no_grad():
            made = copy.deepcopy(module)(*(one.clone() for one in module.inputs))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return NOT_COMPARED, f"torch cannot run its own sample: {error}"
    wanted = [one for one in _pytree.tree_leaves(made) if isinstance(one, torch.Tensor)]
    if any(one.layout != torch.strided for one in (*module.inputs, *wanted)):
        return NOT_COMPARED, "it is sparse"
    try:
        graph = trireme.convert(copy.deepcopy(module), module.inputs)
    except ConvertError as error:
        own = ("torch.export cannot", "torch cannot decompose")
        is_own = str(error).startswith(own)
        return (NOT_EXPORTED if is_own else REFUSED), str(error)
    except Exception as error:
        return WRONG, f"convert raises {type(error).__name__}: {error}"
    return _compared(graph, module, wanted)


def _compared(graph, module, wanted):
    values = {value: graph.values[value] for value in graph.inputs}
    feeds = dict(zip(values, (one.numpy() for one in module.inputs), strict=True))
    try:
        made = interpret(graph, feeds)
    except TriremeError as error:
        return WRONG, f"run raises {type(error).__name__}: {error}"
    found = [made[value] for value in graph.outputs][: len(wanted)]
    if len(found) != len(wanted):
        return WRONG, f"{len(found)} results, not {len(wanted)}"
    for ours, theirs in zip(found, wanted, strict=True):
        theirs = theirs.numpy()
        if str(ours.dtype) != str(theirs.dtype) or ours.shape != theirs.shape:
            return WRONG, f"{ours.dtype}{ours.shape}, not {theirs.dtype}{theirs.shape}"
        if not np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            with np.errstate(all="ignore"):
                return WRONG, f"off by {np.nanmax(np.abs(ours - theirs.astype(ours.dtype)))}"
    return AGREES, ""


def verdict_of(makers, most):
    """Return the worst verdict of some samples of a name, and why."""
    order = (WRONG, REFUSED, NOT_EXPORTED, AGREES, NOT_COMPARED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [examine(sample) for sample in spread(makers, most)]
    return min(found, key=lambda pair: order.index(pair[0]), default=(NOT_COMPARED, "no sample"))


def page_lines(verdicts):
    """Return the lines of the how-to on layers: how many convert, and which do not."""
    names = {kind: [n for n, one in verdicts.items() if one == kind] for kind in verdicts.values()}
    rows = {
        "convert, and agree with torch within 1e-4": names.get(AGREES, []),
        "torch.export refuses": names.get(NOT_EXPORTED, []),
        "trireme refuses": names.get(REFUSED, []),
    }
    lines = [f"| {len(verdicts)} layers of torch.nn | | |", "|---|---|---|"]
    for what, which in rows.items():
        shown = "" if what.startswith("convert") else ", ".join(which)
        lines.append(f"| {what} | {len(which)} | {shown} |")
    return lines


def f(*shape):
    return torch.randn(*shape)


def one(kind, *inputs, args=(), **kwargs):
    """Return a maker of one sample of a layer."""
    return lambda: [Sample(getattr(nn, kind)(*args, **kwargs).eval(), tuple(inputs))]


NO_LAYERS = {
    "Container": "deprecated",
    "DataParallel": "for several GPUs",
    "Module": "the base class",
    "ModuleDict": "has no forward",
    "ModuleList": "has no forward",
    "ParameterDict": "has no forward",
    "ParameterList": "has no forward",
    "RNNBase": "the base class",
    "RNNCellBase": "the base class",
}
torch.manual_seed(SEED)
IMAGE, VOLUME, ROW = f(2, 4, 6, 6), f(2, 4, 4, 4, 4), f(2, 4, 8)
OWN = {
    "AdaptiveLogSoftmaxWithLoss": one(
        "AdaptiveLogSoftmaxWithLoss", f(6, 8), torch.tensor([0, 3, 7, 9, 1, 5]), args=(8, 10, [4])
    ),
    "AlphaDropout": one("AlphaDropout", ROW),
    "ChannelShuffle": one("ChannelShuffle", IMAGE, args=(2,)),
    "CosineSimilarity": one("CosineSimilarity", f(3, 5), f(3, 5)),
    "CrossMapLRN2d": one("CrossMapLRN2d", IMAGE, args=(3,)),
    "Dropout": one("Dropout", ROW),
    "Dropout1d": one("Dropout1d", ROW),
    "Dropout2d": one("Dropout2d", IMAGE),
    "Dropout3d": one("Dropout3d", VOLUME),
    "EmbeddingBag": one("EmbeddingBag", torch.tensor([[1, 2], [3, 0]]), args=(5, 3)),
    "FractionalMaxPool2d": one("FractionalMaxPool2d", IMAGE, args=(2,), output_size=2),
    "FractionalMaxPool3d": one("FractionalMaxPool3d", VOLUME, args=(2,), output_size=2),
    "FeatureAlphaDropout": one("FeatureAlphaDropout", IMAGE),
    "Flatten": one("Flatten", IMAGE),
    "Fold": one("Fold", f(2, 12, 9), args=((4, 4), (2, 2))),
    "Hardsigmoid": one("Hardsigmoid", ROW),
    "Identity": one("Identity", ROW),
    "LazyBatchNorm1d": one("BatchNorm1d", ROW, args=(4,)),
    "LazyBatchNorm2d": one("BatchNorm2d", IMAGE, args=(4,)),
    "LazyBatchNorm3d": one("BatchNorm3d", VOLUME, args=(4,)),
    "LazyInstanceNorm1d": one("InstanceNorm1d", ROW, args=(4,)),
    "LazyInstanceNorm2d": one("InstanceNorm2d", IMAGE, args=(4,)),
    "LazyInstanceNorm3d": one("InstanceNorm3d", VOLUME, args=(4,)),
    "LazyLinear": one("Linear", ROW, args=(8, 3)),
    "MaxUnpool1d": lambda: unpool(1, ROW),
    "MaxUnpool2d": lambda: unpool(2, IMAGE),
    "MaxUnpool3d": lambda: unpool(3, VOLUME),
    "NLLLoss2d": one("NLLLoss2d", f(2, 4, 6, 6).log_softmax(1), torch.randint(0, 4, (2, 6, 6))),
    "PairwiseDistance": one("PairwiseDistance", f(3, 5), f(3, 5)),
    "PixelShuffle": one("PixelShuffle", IMAGE, args=(2,)),
    "PixelUnshuffle": one("PixelUnshuffle", IMAGE, args=(2,)),
    "RReLU": one("RReLU", ROW),
    "Sequential": lambda: [Sample(nn.Sequential(nn.Linear(8, 3), nn.ReLU()), (ROW,))],
    "SyncBatchNorm": one("SyncBatchNorm", IMAGE, args=(4,)),
    "TransformerDecoder": lambda: [
        Sample(
            nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2).eval(),
            (f(5, 2, 8), f(3, 2, 8)),
        )
    ],
    "TripletMarginLoss": one("TripletMarginLoss", f(3, 5), f(3, 5), f(3, 5)),
    "TripletMarginWithDistanceLoss": one(
        "TripletMarginWithDistanceLoss", f(3, 5), f(3, 5), f(3, 5)
    ),
    "Unflatten": one("Unflatten", f(2, 12), args=(1, (3, 4))),
    "Unfold": one("Unfold", IMAGE, args=(2,)),
    "Upsample": lambda: [
        Sample(nn.Upsample(scale_factor=2, mode=mode), (IMAGE,))
        for mode in ("nearest", "bilinear", "bicubic")
    ],
    "UpsamplingBilinear2d": one("UpsamplingBilinear2d", IMAGE, scale_factor=2),
    "UpsamplingNearest2d": one("UpsamplingNearest2d", IMAGE, scale_factor=2),
}
"""Samples of layers that torch's module_db leaves out."""


def unpool(rank, x):
    pooled, places = getattr(nn.functional, f"max_pool{rank}d")(x, 2, return_indices=True)
    return [Sample(getattr(nn, f"MaxUnpool{rank}d")(2), (pooled, places))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("layers", "functions"))
    parser.add_argument("--only", default="", help="names that hold this text")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="the most of each name")
    parser.add_argument("--page", action="store_true", help="print the how-to's table of layers")
    args = parser.parse_args()
    verdicts = {}
    for name, makers in {"layers": layers, "functions": functions}[args.what]():
        if args.only not in name:
            continue
        verdicts[name], why = verdict_of(makers, args.samples)
        if verdicts[name] != AGREES:
            print(f"{name}: {verdicts[name]}: {' | '.join(why.splitlines())[:300]}", flush=True)
    counts = Counter(verdicts.values()).most_common()
    print(", ".join(f"{count} {verdict}" for verdict, count in counts))
    if args.page:
        print("\n".join(page_lines(verdicts)))


if __name__ == "__main__":
    main()
