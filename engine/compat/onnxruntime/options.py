"""SessionOptions and RunOptions: what they mean for a trireme session.

An option that cannot change a result warns when it is set to anything but its default. An option
that would change one and cannot be honoured is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum, IntEnum
from typing import Any, NoReturn

from trireme.compat.onnxruntime.errors import InvalidArgument, NotSupported, warn_unused
from trireme.support.cancel import CancelToken
from trireme.support.live_objects import LiveObjects


class GraphOptimizationLevel(IntEnum):
    """Which passes run: none, or all."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether tasks run one by one or as they are ready."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """An order of nodes."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


_PLANNED = "memory is planned when a model is loaded"
LOGGING = "set the level of Python's logger 'trireme'"
_IGNORED = {
    "enable_cpu_mem_arena": (True, _PLANNED),
    "enable_mem_pattern": (True, _PLANNED),
    "enable_mem_reuse": (True, _PLANNED),
    "execution_order": (ExecutionOrder.DEFAULT, "the plan orders the nodes"),
    "inter_op_num_threads": (0, "a region runs as one program, on intra_op_num_threads"),
    "log_severity_level": (-1, LOGGING),
    "log_verbosity_level": (0, LOGGING),
    "logid": ("", LOGGING),
    "use_per_session_threads": (True, "a session has threads of its own"),
}
"""Options without an effect: the default, and why."""
_KINDS: dict[str, type] = {
    "intra_op_num_threads": int,
    "enable_profiling": bool,
    "profile_file_prefix": str,
    "graph_optimization_level": GraphOptimizationLevel,
    "execution_mode": ExecutionMode,
    "use_deterministic_compute": bool,
    "optimized_model_filepath": str,
}


class _Checked:
    """Checks attributes when they are set; unknown ones are an error."""

    _kinds: dict[str, type] = {}
    _ignored: dict[str, tuple[Any, str]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        own = type(self).__name__
        if name in self._ignored:
            default, why = self._ignored[name]
            if value != default:
                warn_unused(f"{own}.{name} = {value!r}", why)
        elif name not in self._kinds:
            raise AttributeError(f"{own} has no option {name!r}")
        else:
            value = _of_kind(f"{own}.{name}", self._kinds[name], value)
        object.__setattr__(self, name, value)


class SessionOptions(_Checked):
    """Options of a session.

    intra_op_num_threads: threads of the cpu; 0 for all its cores
    graph_optimization_level: ORT_DISABLE_ALL runs no pass, any other runs all
    execution_mode: ORT_PARALLEL runs tasks of several devices as they are ready
    use_deterministic_compute: always so here: a run has the same bits every time
    enable_profiling: see InferenceSession.end_profiling
    """

    _kinds, _ignored = _KINDS, _IGNORED

    def __init__(self) -> None:
        self.intra_op_num_threads: int = 0
        self.enable_profiling: bool = False
        self.profile_file_prefix: str = "onnxruntime_profile_"
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.use_deterministic_compute: bool = False
        self.optimized_model_filepath: str = ""
        for name, (default, _) in _IGNORED.items():
            object.__setattr__(self, name, default)
        self._entries: dict[str, str] = {}
        self._sizes: dict[str, int] = {}

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of symbols by name."""
        return dict(self._sizes)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Give a symbol of the model's inputs a size."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InvalidArgument(f"dimension {name!r} gets {size!r}, expected a size")
        self._sizes[name] = size

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; no entry has an effect."""
        warn_unused(f"the config entry {key!r}", "its options are those of trireme.Session")
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry. Errors: InvalidArgument, if there is none"""
        if key not in self._entries:
            raise InvalidArgument(f"there is no config entry {key!r}")
        return self._entries[key]

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name not in _REFUSED:
            raise AttributeError(f"SessionOptions has no option {name!r}")

        def refuse(*given: object, **named: object) -> NoReturn:
            raise NotSupported(f"SessionOptions.{name} is not supported: {_REFUSED[name]}")

        return refuse


_OWN_OPS = (
    "a Python operator can stand for an op of another domain (docs/how-to/python-operator.md)"
)
_WEIGHTS = "a session reads the weights of its model"
_REFUSED = {
    "register_custom_ops_library": _OWN_OPS,
    "add_initializer": _WEIGHTS,
    "add_external_initializers": _WEIGHTS,
    "add_external_initializers_from_files_in_memory": _WEIGHTS,
    "add_free_dimension_override_by_denotation": "give sizes by name",
    "add_provider": "give providers to InferenceSession",
    "add_provider_for_devices": "give providers to InferenceSession",
    "set_provider_selection_policy": "give providers to InferenceSession",
}


class RunOptions(_Checked):
    """Options of a run.

    terminate: True stops the runs under way that have these options, and further ones
    """

    _kinds = {"terminate": bool}
    _ignored = {
        "log_severity_level": (-1, LOGGING),
        "log_verbosity_level": (0, LOGGING),
        "logid": ("", LOGGING),
        "only_execute_path_to_fetches": (False, "a run computes all outputs"),
    }

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._token = CancelToken()
        self._requests = LiveObjects[Future[Any]]()
        self.terminate: bool = False
        for name, (default, _) in self._ignored.items():
            object.__setattr__(self, name, default)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "terminate":
            if value:
                self._token.cancel()
                for request in list(self._requests):
                    request.cancel()
            else:
                self._token = CancelToken()

    @property
    def token(self) -> CancelToken:
        """The token that stops the runs."""
        return self._token

    def follow(self, request: Future[Any]) -> None:
        """Let `terminate` stop a request too."""
        self._requests.add(request)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; no entry has an effect."""
        warn_unused(f"the run config entry {key!r}", "a run has no such options")
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Return an entry. Errors: InvalidArgument, if there is none"""
        if key not in self._entries:
            raise InvalidArgument(f"there is no run config entry {key!r}")
        return self._entries[key]

    def add_active_adapter(self, adapter: object) -> NoReturn:
        """Refuse an adapter."""
        raise NotSupported("LoRA adapters are not supported: merge them into the model")


def _of_kind(name: str, kind: type, value: Any) -> Any:
    """Return a value as its kind. Errors: InvalidArgument"""
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError as error:
            known = ", ".join(kind.__members__)
            raise InvalidArgument(f"{name} = {value!r}", facts=[f"known: {known}"]) from error
    is_count = kind is not int or (type(value) is int and value >= 0)
    if not isinstance(value, kind) or not is_count:
        raise InvalidArgument(f"{name} = {value!r}, expected a {kind.__name__}")
    if name.endswith("optimized_model_filepath") and value:
        raise NotSupported(
            "optimized_model_filepath is not supported: optimised graphs are cached",
            fix='trireme.save(trireme.convert(model), "m.trm") writes a file that loads fast',
        )
    return value
