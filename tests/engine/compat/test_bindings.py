"""Values and bindings of ONNX Runtime's interface: the same answers, both run side by side."""

import numpy as np
from ort_programs import BOTH, SIGMOID, TWO, A, X, model


@BOTH
def test_ort_values(ort):
    """Values of ONNX Runtime that own or share memory, given to a run."""
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert (value.device_name(), value.shape()) == ("cpu", [3, 4, 5])
    assert value.data_type() == "tensor(float)" and value.element_type() == 1
    assert value.is_tensor() and value.has_value() and not value.is_sparse_tensor()
    assert value.tensor_size_in_bytes() == X.nbytes
    np.testing.assert_array_equal(value.numpy(), X)
    session = ort.InferenceSession(model(SIGMOID))
    expected = session.run(["y"], {"x": X})[0]
    np.testing.assert_array_equal(session.run(["y"], {"x": value})[0], expected)
    (result,) = session.run_with_ort_values(["y"], {"x": value})
    np.testing.assert_array_equal(result.numpy(), expected)
    fresh = ort.OrtValue.ortvalue_from_shape_and_type([3, 4, 5], np.float32, "cpu", 0)
    fresh.update_inplace(X)
    np.testing.assert_array_equal(fresh.numpy(), X)


@BOTH
def test_bind_a_cpu_input_and_copy_outputs(ort):
    session = ort.InferenceSession(model(SIGMOID))
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    (y,) = binding.copy_outputs_to_cpu()
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-X)), rtol=1e-5)


@BOTH
def test_bind_memory_by_its_address(ort):
    session = ort.InferenceSession(model(SIGMOID))
    x = ort.OrtValue.ortvalue_from_numpy(X, "cpu", 0)
    y = ort.OrtValue.ortvalue_from_shape_and_type([3, 4, 5], np.float32, "cpu", 0)
    binding = session.io_binding()
    binding.bind_input("x", x.device_name(), 0, np.float32, x.shape(), x.data_ptr())
    binding.bind_output("y", y.device_name(), 0, np.float32, y.shape(), y.data_ptr())
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(y.numpy(), 1 / (1 + np.exp(-X)), rtol=1e-5)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), y.numpy())


@BOTH
def test_bind_values_and_outputs_of_unknown_shapes(ort):
    session = ort.InferenceSession(model(TWO))
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", ort.OrtValue.ortvalue_from_numpy(A))
    binding.bind_cpu_input("b", A)
    total = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding.bind_output("where", "cpu")
    binding.bind_ortvalue_output("total", total)
    for _ in range(2):
        session.run_with_iobinding(binding)
    where, sums = (value.numpy() for value in binding.get_outputs())
    np.testing.assert_array_equal(where, (A + A).argmax(1))
    np.testing.assert_array_equal(sums, A + A)
    np.testing.assert_array_equal(total.numpy(), A + A)
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
