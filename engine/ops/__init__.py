"""The ops trireme knows. Importing this package fills the registry, one family a module."""

from trireme.ops import (
    activation,
    conversion,
    convolution,
    detection,
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
    spectral,
)

__all__ = [
    "activation", "conversion", "convolution", "detection", "elementwise", "image", "indexing",
    "matmul", "movement", "normalization", "pooling", "quantization", "reduction", "resize",
    "slicing", "spectral",
]  # fmt: skip
