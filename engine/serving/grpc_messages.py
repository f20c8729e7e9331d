"""The messages of the gRPC services, made from tables when this module is imported.

They live in a descriptor pool of their own, so a client library in the same process may register
messages of the same names. A test compares the tables with the messages that tritonclient brings.
Source: Open Inference Protocol v2 (KServe) with Triton's extensions; gRPC Health Checking Protocol
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

_PARAMETERS = "parameters map InferParameter"
_MODEL = {1: "name string", 2: "version string"}

INFERENCE: Final[Mapping[str, Mapping[int, str]]] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {1: "live bool"},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {1: "ready bool"},
    "ModelReadyRequest": _MODEL,
    "ModelReadyResponse": {1: "ready bool"},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {1: "name string", 2: "version string", 3: "extensions many string"},
    "ModelMetadataRequest": _MODEL,
    "ModelMetadataResponse": {
        1: "name string",
        2: "versions many string",
        3: "platform string",
        4: "inputs many ModelMetadataResponse.TensorMetadata",
        5: "outputs many ModelMetadataResponse.TensorMetadata",
    },
    "ModelMetadataResponse.TensorMetadata": {
        1: "name string",
        2: "datatype string",
        3: "shape many int64",
    },
    "InferParameter": {
        1: "bool_param bool of parameter_choice",
        2: "int64_param int64 of parameter_choice",
        3: "string_param string of parameter_choice",
        4: "double_param double of parameter_choice",
        5: "uint64_param uint64 of parameter_choice",
    },
    "InferTensorContents": {
        1: "bool_contents many bool",
        2: "int_contents many int32",
        3: "int64_contents many int64",
        4: "uint_contents many uint32",
        5: "uint64_contents many uint64",
        6: "fp32_contents many float",
        7: "fp64_contents many double",
        8: "bytes_contents many bytes",
    },
    "ModelInferRequest": {
        1: "model_name string",
        2: "model_version string",
        3: "id string",
        4: _PARAMETERS,
        5: "inputs many ModelInferRequest.InferInputTensor",
        6: "outputs many ModelInferRequest.InferRequestedOutputTensor",
        7: "raw_input_contents many bytes",
    },
    "ModelInferRequest.InferInputTensor": {
        1: "name string",
        2: "datatype string",
        3: "shape many int64",
        4: _PARAMETERS,
        5: "contents InferTensorContents",
    },
    "ModelInferRequest.InferRequestedOutputTensor": {1: "name string", 2: _PARAMETERS},
    "ModelInferResponse": {
        1: "model_name string",
        2: "model_version string",
        3: "id string",
        4: _PARAMETERS,
        5: "outputs many ModelInferResponse.InferOutputTensor",
        6: "raw_output_contents many bytes",
    },
    "ModelInferResponse.InferOutputTensor": {
        1: "name string",
        2: "datatype string",
        3: "shape many int64",
        4: _PARAMETERS,
        5: "contents InferTensorContents",
    },
    "ModelStreamInferResponse": {
        1: "error_message string",
        2: "infer_response ModelInferResponse",
    },
    "ModelConfigRequest": _MODEL,
    "ModelConfigResponse": {1: "config ModelConfig"},
    "ModelConfig": {
        1: "name string",
        2: "platform string",
        4: "max_batch_size int32",
        5: "input many ModelInput",
        6: "output many ModelOutput",
        7: "instance_group many ModelInstanceGroup",
        11: "dynamic_batching ModelDynamicBatching of scheduling_choice",
        14: "parameters map ModelParameter",
        17: "backend string",
    },
    "ModelInput": {1: "name string", 2: "data_type DataType", 4: "dims many int64"},
    "ModelOutput": {1: "name string", 2: "data_type DataType", 3: "dims many int64"},
    "ModelInstanceGroup": {1: "name string", 2: "count int32"},
    "ModelDynamicBatching": {
        1: "preferred_batch_size many int32",
        2: "max_queue_delay_microseconds uint64",
    },
    "ModelParameter": {1: "string_value string"},
    "ModelStatisticsRequest": _MODEL,
    "ModelStatisticsResponse": {1: "model_stats many ModelStatistics"},
    "ModelStatistics": {
        1: "name string",
        2: "version string",
        3: "last_inference uint64",
        4: "inference_count uint64",
        5: "execution_count uint64",
        6: "inference_stats InferStatistics",
        7: "batch_stats many InferBatchStatistics",
    },
    "StatisticDuration": {1: "count uint64", 2: "ns uint64"},
    "InferStatistics": {
        1: "success StatisticDuration",
        2: "fail StatisticDuration",
        3: "queue StatisticDuration",
        4: "compute_input StatisticDuration",
        5: "compute_infer StatisticDuration",
        6: "compute_output StatisticDuration",
        7: "cache_hit StatisticDuration",
        8: "cache_miss StatisticDuration",
    },
    "InferBatchStatistics": {
        1: "batch_size uint64",
        2: "compute_input StatisticDuration",
        3: "compute_infer StatisticDuration",
        4: "compute_output StatisticDuration",
    },
    "ModelRepositoryParameter": {
        1: "bool_param bool of parameter_choice",
        2: "int64_param int64 of parameter_choice",
        3: "string_param string of parameter_choice",
        4: "bytes_param bytes of parameter_choice",
    },
    "RepositoryIndexRequest": {1: "repository_name string", 2: "ready bool"},
    "RepositoryIndexResponse": {1: "models many RepositoryIndexResponse.ModelIndex"},
    "RepositoryIndexResponse.ModelIndex": {
        1: "name string",
        2: "version string",
        3: "state string",
        4: "reason string",
    },
    "RepositoryModelLoadRequest": {
        1: "repository_name string",
        2: "model_name string",
        3: "parameters map ModelRepositoryParameter",
    },
    "RepositoryModelLoadResponse": {},
    "RepositoryModelUnloadRequest": {
        1: "repository_name string",
        2: "model_name string",
        3: "parameters map ModelRepositoryParameter",
    },
    "RepositoryModelUnloadResponse": {},
}
"""Fields by message and number: name, "many" or "map" where it repeats, type, "of" a choice.

Messages hold the fields that the server reads or writes.
"""

_DATA_TYPES = [
    "INVALID",
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "STRING",
    "BF16",
]

HEALTH: Final[Mapping[str, Mapping[int, str]]] = {
    "HealthCheckRequest": {1: "service string"},
    "HealthCheckResponse": {1: "status ServingStatus"},
}
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
"""Values of ServingStatus."""

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
    "float": _Field.TYPE_FLOAT,
    "double": _Field.TYPE_DOUBLE,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
}


def make_messages(
    package: str,
    tables: Mapping[str, Mapping[int, str]],
    enums: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Any]:
    """Return the class of each message of the tables by its name.

    enums: names of the values of each enumeration, from 0 on
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"trireme/{package}.proto", package=package, syntax="proto3"
    )
    for name, values in (enums or {}).items():
        made = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            made.value.add(name=value, number=number)
    messages: dict[str, Any] = {}
    for name, fields in tables.items():
        outer, _, inner = name.rpartition(".")
        message = (messages[outer].nested_type if outer else file.message_type).add(name=inner)
        messages[name] = message
        for number, text in fields.items():
            _add_field(message, number, text, f".{package}", frozenset(enums or {}), name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in tables
    }


def _add_field(
    message: Any, number: int, text: str, package: str, enums: frozenset[str], owner: str
) -> None:
    """Add the field of a line to a message."""
    name, *words = text.split()
    choice = words.pop() if "of" in words else ""
    words = [word for word in words if word != "of"]
    kind = words[-1]
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if words[0] in ("many", "map"):
        field.label = _Field.LABEL_REPEATED
    if words[0] == "map":
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, 1, "key string", package, enums, owner)
        _add_field(entry, 2, f"value {kind}", package, enums, owner)
        kind = f"{owner}.{entry.name}"
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type = _Field.TYPE_ENUM if kind in enums else _Field.TYPE_MESSAGE
        field.type_name = f"{package}.{kind}"
    if choice:
        if not message.oneof_decl:
            message.oneof_decl.add(name=choice)
        field.oneof_index = 0


MESSAGES: Final = make_messages(
    "inference", INFERENCE, {"DataType": tuple(f"TYPE_{one}" for one in _DATA_TYPES)}
) | make_messages(
    "grpc.health.v1",
    HEALTH,
    {"ServingStatus": ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")},
)
"""The class of each message."""
