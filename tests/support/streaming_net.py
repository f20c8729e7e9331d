"""A streaming int8 net with variables, of the shape of microWakeWord's: a few us a frame."""

import numpy as np
from tflite_builder import Op, Sub, T, constant, model_of

FRAME = (1, 3, 40)
NONE, RELU = 0, 1
WINDOWS = ((2, 30), (8, 60), (12, 60), (20, 60))
"""Rows that each state keeps, and channels that follow it."""


class StreamingNet:
    """Writes the net, tensor by tensor; `data` gives its file."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)
        self._tensors, self._ops, self._states = [T(FRAME, "int8", (0.1,), (-128,))], [], {}

    def data(self):
        """Return the file: CALL_ONCE fills the states, then a frame of three rows is read."""
        self._ops.append(Op("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": 1}))
        shape = self._constant(np.array([1, 3, 1, 40], np.int32))
        x = self._add(
            "RESHAPE", [0, shape], T((1, 3, 1, 40), "int8", (0.1,), (-128,)), "ReshapeOptions"
        )
        for number, (rows, channels) in enumerate(WINDOWS):
            x = self._window(f"stream_{number}", x, rows)
            if number:
                x = self._depthwise(x)
                x = self._conv(x, channels, 1, 1)
            else:
                x = self._conv(x, channels, 5, 3)
        x = self._window("stream_last", x, 4)
        y = self._head(x)
        return model_of([Sub(self._tensors, self._ops, [0], [y]), self._initial()])

    def _tensor(self, tensor):
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def _constant(self, array, *scales, axis=0):
        return self._tensor(constant(array, *scales, axis=axis))

    def _add(self, code, inputs, output, kind="", **options):
        made = self._tensor(output)
        self._ops.append(Op(code, inputs, [made], kind, options))
        return made

    def _window(self, name, x, rows):
        """Join what a state keeps with new rows; the state keeps the last rows of the two."""
        new = self._tensors[x]
        kept = T((1, rows, 1, new.shape[-1]), "int8", new.scales, new.zeros)
        self._states[name] = kept
        handle = self._tensor(T((1,), "resource"))
        self._ops.append(_handle(handle, name))
        old = self._add("READ_VARIABLE", [handle], kept, "ReadVariableOptions")
        both = T((1, rows + new.shape[1], 1, new.shape[-1]), "int8", new.scales, new.zeros)
        joined = self._add("CONCATENATION", [old, x], both, "ConcatenationOptions", Axis=1)
        ends = [(0, new.shape[1], 0, 0), both.shape, (1, 1, 1, 1)]
        slices = [self._constant(np.array(end, np.int32)) for end in ends]
        last = self._add("STRIDED_SLICE", [joined, *slices], kept, "StridedSliceOptions")
        self._ops.append(Op("ASSIGN_VARIABLE", [handle, last], [], "AssignVariableOptions"))
        return joined

    def _conv(self, x, channels, rows, stride):
        shape = self._tensors[x].shape
        weights = (channels, rows, 1, shape[-1])
        y = T((1, (shape[1] - rows) // stride + 1, 1, channels), "int8", (0.05,), (-128,))
        options = {"StrideH": stride, "StrideW": 1, "FusedActivationFunction": RELU, "Padding": 1}
        options |= {"DilationHFactor": 1, "DilationWFactor": 1}
        return self._add(
            "CONV_2D", [x, *self._weights(x, weights, 0)], y, "Conv2DOptions", **options
        )

    def _depthwise(self, x):
        _, rows, _, channels = self._tensors[x].shape
        y = T((1, 1, 1, channels), "int8", (0.06,), (5,))
        options = {"StrideH": 1, "StrideW": 1, "DepthMultiplier": 1, "Padding": 1}
        options |= {"DilationHFactor": 1, "DilationWFactor": 1, "FusedActivationFunction": NONE}
        weights = self._weights(x, (1, rows, 1, channels), 3)
        return self._add("DEPTHWISE_CONV_2D", [x, *weights], y, "DepthwiseConv2DOptions", **options)

    def _weights(self, x, shape, axis):
        """Add weights of a scale a channel, and a bias."""
        count = shape[axis]
        scales = self._rng.uniform(0.004, 0.012, count).astype(np.float32).tolist()
        data = self._rng.integers(-127, 128, shape).astype(np.int8)
        bias = self._rng.integers(-900, 900, count).astype(np.int32)
        both = [self._tensors[x].scales[0] * one for one in scales]
        return [self._constant(data, *scales, axis=axis), self._constant(bias, *both)]

    def _head(self, x):
        size = int(np.prod(self._tensors[x].shape))
        shape = self._constant(np.array([1, size], np.int32))
        flat = T((1, size), "int8", self._tensors[x].scales, self._tensors[x].zeros)
        x = self._add("RESHAPE", [x, shape], flat, "ReshapeOptions")
        scale = 0.0005  # so that few frames saturate the score
        weights = self._constant(self._rng.integers(-127, 128, (1, size)).astype(np.int8), scale)
        bias = self._constant(np.array([-300], np.int32), flat.scales[0] * scale)
        y = T((1, 1), "int8", (0.1,), (10,))
        y = self._add("FULLY_CONNECTED", [x, weights, bias], y, "FullyConnectedOptions")
        y = self._add("LOGISTIC", [y], T((1, 1), "int8", (1 / 256,), (-128,)))
        return self._add("QUANTIZE", [y], T((1, 1), "uint8", (1 / 256,), (0,)))

    def _initial(self):
        """Return the subgraph that fills each state with its zero point."""
        tensors, ops = [], []
        for name, kept in self._states.items():
            at = len(tensors)
            zeros = np.full(kept.shape, kept.zeros[0], np.int8)
            tensors += [T((1,), "resource"), constant(zeros, *kept.scales, zero=kept.zeros[0])]
            assign = Op("ASSIGN_VARIABLE", [at, at + 1], [], "AssignVariableOptions")
            ops += [_handle(at, name), assign]
        return Sub(tensors, ops, [], [])


def _handle(tensor, name):
    options = {"Container": "", "SharedName": name}
    return Op("VAR_HANDLE", [], [tensor], "VarHandleOptions", options)
