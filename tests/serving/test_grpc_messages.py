"""The tables of messages against the messages that tritonclient brings."""

import numpy as np
import pytest

pytest.importorskip("google.protobuf", reason="needs the extra serve")
service = pytest.importorskip("tritonclient.grpc.service_pb2", reason="needs tritonclient")

from trireme.serving.grpc_messages import INFERENCE, MESSAGES  # noqa: E402


def theirs(name):
    """The descriptor of tritonclient's message."""
    found = service.DESCRIPTOR.message_types_by_name.get(name.split(".")[0])
    if found is None:
        from tritonclient.grpc import model_config_pb2

        found = model_config_pb2.DESCRIPTOR.message_types_by_name[name]
    for inner in name.split(".")[1:]:
        found = found.nested_types_by_name[inner]
    return found


def facts(field):
    kind = field.message_type or field.enum_type
    choice = field.containing_oneof
    return (
        field.name,
        field.type,
        field.is_repeated,
        kind.full_name if kind else None,
        choice.name if choice else None,
    )


@pytest.mark.parametrize("name", INFERENCE)
def test_numbers_names_and_types_are_the_protocols(name):
    other = theirs(name).fields_by_number
    for field in MESSAGES[name].DESCRIPTOR.fields:
        assert facts(field) == facts(other[field.number])


def test_maps_are_read_by_tritonclient():
    mine = MESSAGES["ModelInferRequest"](model_name="net", id="7")
    mine.parameters["priority"].int64_param = 3
    mine.inputs.add(name="x", datatype="FP32", shape=[2]).parameters["a"].string_param = "b"
    mine.raw_input_contents.append(np.float32([1, 2]).tobytes())
    read = service.ModelInferRequest.FromString(mine.SerializeToString())
    assert read.parameters["priority"].int64_param == 3
    assert read.inputs[0].parameters["a"].string_param == "b"
    assert MESSAGES["ModelInferRequest"].FromString(read.SerializeToString()) == mine


def test_data_types_have_the_protocols_numbers():
    from tritonclient.grpc import model_config_pb2

    mine = MESSAGES["ModelInput"].DESCRIPTOR.fields_by_name["data_type"].enum_type
    other = model_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"]
    assert {v.name: v.number for v in mine.values} == {v.name: v.number for v in other.values}
