#!/usr/bin/env bash
# ai-edge-litert 2.3.0: NEG of int8 negates the stored integers and looks at no scale or zero point,
# neither that of its input nor that of its output, with the reference and the default kernels. The
# file's quantisation says otherwise: 10 at scale 1 is 10.0, and -10.0 at scale 2 is -5.
#
# Seen: stored 10, 4, -128 at scale 1, zero point 0, to scale 2, zero point 3:
#   -10, -4 and -128 by both kernels; the types ask for -2, 1 and 67. -128 stays -128.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ai-edge-litert==2.3.0 flatbuffers==25.12.19 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as S
from ai_edge_litert.interpreter import Interpreter, OpResolverType


def model():
    made, graph = S.ModelT(), S.SubGraphT()
    made.version, made.buffers, graph.tensors = 3, [S.BufferT()], []
    for name, scale, zero in ((b"x", 1.0, 0), (b"y", 2.0, 3)):
        tensor = S.TensorT()
        tensor.name, tensor.shape, tensor.type = name, np.array([3], np.int32), S.TensorType.INT8
        tensor.buffer, tensor.quantization = 0, S.QuantizationParametersT()
        tensor.quantization.scale = np.array([scale], np.float32)
        tensor.quantization.zeroPoint = np.array([zero], np.int64)
        graph.tensors.append(tensor)
    code, operator = S.OperatorCodeT(), S.OperatorT()
    code.builtinCode = code.deprecatedBuiltinCode = S.BuiltinOperator.NEG
    code.version, operator.opcodeIndex = 1, 0
    operator.inputs, operator.outputs = np.array([0], np.int32), np.array([1], np.int32)
    operator.builtinOptionsType = S.BuiltinOptions.NegOptions
    operator.builtinOptions = S.NegOptionsT()
    graph.operators, graph.inputs, graph.outputs = [operator], np.array([0]), np.array([1])
    made.operatorCodes, made.subgraphs = [code], [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(made.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


for resolver in (OpResolverType.BUILTIN_REF, OpResolverType.AUTO):
    session = Interpreter(model_content=model(), experimental_op_resolver_type=resolver)
    session.allocate_tensors()
    session.set_tensor(0, np.array([10, 4, -128], np.int8))
    session.invoke()
    got = session.get_tensor(1).tolist()
    print(resolver.name, got)
    assert got == [-10, -4, -128], got
PY
