"""Inputs of a client of gRPC, and waiting for what a server does meanwhile."""

import time

import tritonclient.grpc
from tritonclient.utils import np_to_triton_dtype


def input_of(name, array):
    datatype = np_to_triton_dtype(array.dtype)
    tensor = tritonclient.grpc.InferInput(name, array.shape, datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def waited_until(is_true, timeout_s=20):
    end = time.monotonic() + timeout_s
    while not is_true() and time.monotonic() < end:
        time.sleep(0.005)
    assert is_true()
