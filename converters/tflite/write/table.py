"""How each op is written as TensorFlow Lite operators: a rule an op."""

from __future__ import annotations

from trireme.converters.tflite.write.elementwise import ELEMENTWISE
from trireme.converters.tflite.write.movement import MOVEMENT
from trireme.converters.tflite.write.pools import POOLS
from trireme.converters.tflite.write.products import PRODUCTS
from trireme.converters.tflite.write.reductions import REDUCTIONS
from trireme.converters.tflite.write.use import WriteRule
from trireme.converters.tflite.write.windows import WINDOWS

RULES: dict[str, WriteRule] = ELEMENTWISE | MOVEMENT | POOLS | PRODUCTS | REDUCTIONS | WINDOWS
"""The ops that can be written."""


def written_ops() -> list[str]:
    """Return the names of the ops that can be written."""
    return sorted(RULES)
