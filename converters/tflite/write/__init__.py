"""Write a Graph as a TensorFlow Lite model: a Graph comes in, the bytes of the file go out.

`table` says how each op is written. `walk` visits the nodes and collects refusals. `flat` lays the
records out as FlatBuffers.
"""

from trireme.converters.tflite.write.walk import export

__all__ = ["export"]
