"""The classes under the module that ONNX Runtime defines them in: some programs import that."""

from __future__ import annotations

from trireme.compat.onnxruntime import InferenceSession, IOBinding, OrtValue

__all__ = ["IOBinding", "InferenceSession", "OrtValue"]
