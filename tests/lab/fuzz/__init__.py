"""Random ONNX graphs, their answers by ONNX Runtime, and what trireme makes of them.

`grower` builds a graph node by node from the rows of `table`, `oracle` runs it on ONNX Runtime,
`check` runs it on trireme in every way and compares, and `shrink` makes a failing model small.
"""
