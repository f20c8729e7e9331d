"""The package that ONNX Runtime keeps its extension module in: programs import errors from it."""
