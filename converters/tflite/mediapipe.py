"""Custom operators of MediaPipe's .tflite files that LiteRT's XNNPACK delegate runs as well.

Their options are the bytes of a C structure.
"""

from __future__ import annotations

import struct

from trireme.converters.tflite.file import reading
from trireme.converters.tflite.linear import transposed
from trireme.converters.tflite.use import Converter, OperatorUse
from trireme.support.errors import ModelFileError


def transpose_conv_bias(use: OperatorUse) -> None:
    """Convolution2DTransposeBias (x, weights [O,KH,KW,C], bias); pads from the output's size.

    The options are a TfLiteTransposeConvParams, of which padding, stride_width and stride_height
    are read. The output's size is the declared one, so x must have the declared shape too.

    Errors: ConvertError, if x is not a float, or has another shape than the file says
    Source: MediaPipe, transpose_conv_bias.cc; TensorFlow Lite, xnnpack_delegate.cc
    """
    with reading(f"{use.source} custom_options"):
        padding, across, down = struct.unpack_from("<3i", use.operator.custom)
    target = use.output().shape
    if len(target) != 4 or min(*target, across, down) < 1 or padding not in (1, 2):
        raise ModelFileError(
            f"{use.source}: output shape {list(target)}, strides {[down, across]}, {padding=}"
        )
    if use.type(0).shape != use.tensor(0).shape or use.type(0).quant is not None:
        raise use.fail(f"input 0 is {use.type(0)}, expected float32{list(use.tensor(0).shape)}")
    transposed(use, 0, target[1:3], [down, across])


MEDIAPIPE: dict[str, Converter] = {"Convolution2DTransposeBias": transpose_conv_bias}
"""The converters, by custom name."""
