"""Write a Graph as an ONNX model: a Graph comes in, the bytes of the file go out.

`table` says how each op is written. `walk` visits the nodes, keeps names and collects refusals.
"""

from trireme.converters.onnx.write.table import OPSET
from trireme.converters.onnx.write.walk import export

__all__ = ["OPSET", "export"]
