"""OrtValue and OrtDevice: arrays with the methods of ONNX Runtime's values. All lie in memory of
the host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from trireme.compat.onnxruntime.errors import InvalidArgument, NotSupported
from trireme.compat.onnxruntime.signature import element_dtype, element_number, type_text
from trireme.support.dtypes import Array, dtype_name


class OrtDevice:
    """A place of values: the host."""

    def __init__(self, device_type: str = "cpu", device_id: int = 0) -> None:
        check_device(device_type, device_id)
        self._type, self._id = device_type, device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int) -> OrtDevice:
        """Return the device of a name."""
        return OrtDevice(ort_device_name, device_id)

    def device_id(self) -> int:
        """Return 0."""
        return self._id

    def device_type(self) -> str:
        """Return "cpu"."""
        return self._type


class OrtValue:
    """A tensor: an array that it shares memory with."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: Array, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return a value that shares the memory of an array; of one that is not dense, a copy."""
        check_device(device_type, device_id)
        if not isinstance(numpy_obj, np.ndarray):
            raise InvalidArgument(f"a {type(numpy_obj).__name__} is no array of numpy")
        return OrtValue(np.ascontiguousarray(numpy_obj) if numpy_obj.ndim else numpy_obj)

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: Array, onnx_element_type: int) -> OrtValue:
        """Return a value of an ONNX type whose elements have as many bytes as the array's."""
        dtype = element_dtype(onnx_element_type)
        if data.dtype.itemsize != dtype.itemsize:
            raise InvalidArgument(f"{data.dtype} cannot hold elements of {dtype_name(dtype)}")
        return OrtValue(np.ascontiguousarray(data).view(dtype))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return a value whose elements are not set yet."""
        check_device(device_type, device_id)
        return OrtValue(np.empty(tuple(shape), element_dtype(element_type)))

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> OrtValue:
        """Return a value that shares memory with an array of another library."""
        array = np.from_dlpack(data)
        return OrtValue(array.view(bool) if is_bool_tensor else array)

    def __dlpack__(self, **options: Any) -> Any:
        """Return the capsule of the array's memory."""
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the host."""
        return self._array.__dlpack_device__()

    @property
    def array(self) -> Array:
        """The array whose memory this is."""
        return self._array

    def numpy(self) -> Array:
        """Return a copy as an array."""
        return self._array.copy()

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self._array.ctypes.data)

    def device_name(self) -> str:
        """Return "cpu"."""
        return "cpu"

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Return the type, such as "tensor(float)"."""
        return type_text(dtype_name(self._array.dtype))

    def element_type(self) -> int:
        """Return the number of the type in ONNX."""
        return element_number(self._array)

    def has_value(self) -> bool:
        """Return True."""
        return True

    def is_tensor(self) -> bool:
        """Return True."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Return False."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Return False."""
        return False

    def tensor_size_in_bytes(self) -> int:
        """Return the bytes of all elements."""
        return int(self._array.nbytes)

    def update_inplace(self, np_arr: Array) -> None:
        """Write the elements of an array of the same shape and type."""
        if np_arr.shape != self._array.shape or np_arr.dtype != self._array.dtype:
            raise InvalidArgument(
                f"the value is {self._array.dtype}{self.shape()}, the array "
                f"{np_arr.dtype}{list(np_arr.shape)}"
            )
        self._array[...] = np_arr


def check_device(device_type: Any, device_id: Any = 0) -> None:
    """Raise NotSupported for memory that is not the host's."""
    if device_type != "cpu" or device_id != 0:
        raise NotSupported(
            f"memory of {device_type} {device_id} cannot be bound: inputs and outputs are on cpu 0",
            facts=["copies to other devices are part of a session's plan"],
        )


def array_at(pointer: int, shape: Sequence[int], element_type: Any) -> Array:
    """Return the memory at an address as an array. The caller keeps it alive."""
    dtype = element_dtype(element_type)
    count = int(np.prod(shape, dtype=np.int64))
    if min(shape, default=0) < 0 or not pointer:
        raise InvalidArgument(f"no array of shape {list(shape)} lies at address {pointer}")
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
    return np.frombuffer(memory, dtype, count).reshape(tuple(shape))
