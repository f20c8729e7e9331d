"""The ops of domains other than ONNX's default one."""

from __future__ import annotations

from collections.abc import Mapping

from trireme.converters.onnx.microsoft import MICROSOFT, MICROSOFT_TABLE
from trireme.converters.onnx.ml import ML, ML_TABLE
from trireme.converters.onnx.table import OpEntry
from trireme.converters.onnx.training import TRAINING, TRAINING_TABLE

DOMAINS: Mapping[str, Mapping[str, OpEntry]] = {
    MICROSOFT: MICROSOFT_TABLE,
    ML: ML_TABLE,
    TRAINING: TRAINING_TABLE,
}
