#!/usr/bin/env bash
# ai-edge-litert 2.3.0: one int8 FULLY_CONNECTED at exact halves has three results, by the kernels.
# The reference resolver rounds halves away from zero, the built-in kernels round them up, the default
# (XNNPACK) rounds them to even. The reference kernel of CONV_2D, the same product as a 1x1
# convolution, rounds up: the two reference kernels of one product disagree.
#
# Seen: sums 3 5 -3 -5 at an output scale of twice the product of the scales
#   FULLY_CONNECTED: reference 2 3 -2 -3, built-in 2 3 -1 -2, default 2 2 -2 -2
#   CONV_2D:         reference 2 3 -1 -2
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


def tensor(model, name, shape, kind, scale, data=None):
    made = S.TensorT()
    made.name, made.shape, made.type = name, np.array(shape, np.int32), kind
    made.quantization = S.QuantizationParametersT()
    made.quantization.scale = np.array([scale], np.float32)
    made.quantization.zeroPoint = np.array([0], np.int64)
    made.buffer = 0
    if data is not None:
        buffer = S.BufferT()
        buffer.data = np.frombuffer(data.tobytes(), np.uint8)
        model.buffers.append(buffer)
        made.buffer = len(model.buffers) - 1
    return made


def product(conv):
    """A product of one number with the weights 3 5 -3 -5, scales 1 and 1, result 2."""
    model, graph = S.ModelT(), S.SubGraphT()
    model.version, model.buffers = 3, [S.BufferT()]
    int8, int32 = S.TensorType.INT8, S.TensorType.INT32
    ends = ([1, 1, 1, 1], [4, 1, 1, 1], [1, 1, 1, 4]) if conv else ([1, 1], [4, 1], [1, 4])
    graph.tensors = [
        tensor(model, b"x", ends[0], int8, 1.0),
        tensor(model, b"w", ends[1], int8, 1.0, np.array([3, 5, -3, -5], np.int8)),
        tensor(model, b"b", [4], int32, 1.0, np.zeros(4, np.int32)),
        tensor(model, b"y", ends[2], int8, 2.0),
    ]
    code, operator = S.OperatorCodeT(), S.OperatorT()
    if conv:
        code.builtinCode, code.version = S.BuiltinOperator.CONV_2D, 3
        operator.builtinOptionsType = S.BuiltinOptions.Conv2DOptions
        operator.builtinOptions = S.Conv2DOptionsT()
        operator.builtinOptions.strideW = operator.builtinOptions.strideH = 1
        operator.builtinOptions.dilationWFactor = operator.builtinOptions.dilationHFactor = 1
    else:
        code.builtinCode, code.version = S.BuiltinOperator.FULLY_CONNECTED, 4
        operator.builtinOptionsType = S.BuiltinOptions.FullyConnectedOptions
        operator.builtinOptions = S.FullyConnectedOptionsT()
    code.deprecatedBuiltinCode = code.builtinCode
    model.operatorCodes = [code]
    operator.opcodeIndex = 0
    operator.inputs, operator.outputs = np.array([0, 1, 2], np.int32), np.array([3], np.int32)
    graph.operators, graph.inputs, graph.outputs = [operator], np.array([0]), np.array([3])
    model.subgraphs = [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output()), ends[0]


def run(conv, resolver):
    content, shape = product(conv)
    session = Interpreter(
        model_content=content, experimental_op_resolver_type=resolver, num_threads=1
    )
    session.allocate_tensors()
    session.set_tensor(session.get_input_details()[0]["index"], np.ones(shape, np.int8))
    session.invoke()
    return session.get_tensor(session.get_output_details()[0]["index"]).ravel().tolist()


R = OpResolverType
seen = {
    "fully connected, reference": run(False, R.BUILTIN_REF),
    "fully connected, built-in": run(False, R.BUILTIN_WITHOUT_DEFAULT_DELEGATES),
    "fully connected, default": run(False, R.AUTO),
    "convolution, reference": run(True, R.BUILTIN_REF),
}
for name, numbers in seen.items():
    print(name, numbers)
want = [[2, 3, -2, -3], [2, 3, -1, -2], [2, 2, -2, -2], [2, 3, -1, -2]]
assert list(seen.values()) == want, seen
PY
