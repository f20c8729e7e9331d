"""The ops trireme knows. Importing this package fills the registry, one family a module."""

from trireme.ops import (
    activation,
    conversion,
    convolution,
    elementwise,
    image,
    indexing,
    matmul,
    movement,
    normalization,
    pooling,
    quantization,
    reduction,
    resize,
    slicing,
)

__all__ = [
    "activation", "conversion", "convolution", "elementwise", "image", "indexing", "matmul",
    "movement", "normalization", "pooling", "quantization", "reduction", "resize", "slicing",
]  # fmt: skip
