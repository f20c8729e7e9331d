"""Custom operators of TFLite files that functions of the user stand for."""

import numpy as np
import pytest
from flatbuffers import flexbuffers
from tflite_builder import T, one_op

import trireme
from trireme import ExecutionOptions, Session
from trireme.support.errors import ConvertError
from trireme.tools.cli import main

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
OPTIONS = {"factor": 2.5, "name": "scale", "axes": [0, 1]}


@trireme.python_op(inputs=["float32"], outputs=["float32"])
def scale(x, factor=1.0, name="", axes=()):
    return (x * np.float32(factor) + len(axes)).astype(np.float32)


@trireme.python_op(inputs=["float32"], outputs=["float32"])
def raw(x, custom_options=""):
    return x * np.float32(len(bytes.fromhex(custom_options)))


def custom(options, code="MyScale"):
    data = options if isinstance(options, bytes) else bytes(flexbuffers.Dumps(options))
    return one_op(code, [T(X.shape)], [T(X.shape)], custom=data)


def run(model, **functions):
    how = ExecutionOptions(python_ops=functions)
    with Session(model, execution_options=how) as session:
        (made,) = session.run({session.inputs[0].name: X}).values()
        return made, session.placement


def test_a_function_stands_for_a_custom_operator():
    made, placement = run(custom(OPTIONS), MyScale=scale)
    np.testing.assert_array_equal(made, X * np.float32(2.5) + 2)
    assert "host" in str(placement)


def test_without_options_and_with_bytes_of_another_kind():
    made, _ = run(custom(b""), MyScale=scale)
    np.testing.assert_array_equal(made, X)
    made, _ = run(custom(b"\xff\xfe\xfd\x01\x02"), MyScale=raw)
    np.testing.assert_array_equal(made, X * 5)


def test_a_function_stands_for_a_builtin_operator():
    model = one_op("TANH", [T(X.shape)], [T(X.shape)])
    made, _ = run(model, TANH=scale)
    np.testing.assert_array_equal(made, X)


def test_options_that_no_argument_can_be_are_refused():
    with pytest.raises(ConvertError, match="the option 'inner' is no number, text or list"):
        run(custom({"inner": {"a": 1}}), MyScale=scale)


def test_without_the_function_the_error_says_how(tmp_path, capsys):
    path = tmp_path / "custom.tflite"
    path.write_bytes(custom(OPTIONS))
    with pytest.raises(ConvertError, match="1 x MyScale") as caught:
        trireme.convert(path)
    assert caught.value.fix == 'python_ops={"MyScale": function} calls a Python operator instead'
    (tmp_path / "ops.py").write_text(
        "import numpy as np\nimport trireme\n"
        "@trireme.python_op(inputs=['float32'], outputs=['float32'])\n"
        "def scale(x, factor, name, axes):\n    return x * np.float32(factor)\n"
        "python_ops = {'MyScale': scale, 'scale': scale}\n"
    )
    ops = ["--python-ops", str(tmp_path / "ops.py")]
    made = tmp_path / "custom.trm"
    assert main(["convert", str(path), "-o", str(made), *ops]) == 0
    for model in (path, made):
        assert main(["run", str(model), *ops]) == 0
    assert main(["profile", str(path), *ops]) == 0
    assert "python" in capsys.readouterr().out
