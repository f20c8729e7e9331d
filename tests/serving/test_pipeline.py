"""Pipelines: stages that overlap, bounds that hold, errors and deadlines of one request alone."""

import sys
import threading
import time
import types

import numpy as np
import pytest
from serving_models import affine_model, put_version

from trireme.serving.config import ModelSettings, PipelineSettings, ServeConfig, ServerSettings
from trireme.serving.configured import open_models
from trireme.serving.errors import ServingError
from trireme.serving.pipeline import StagedPipeline, outputs_within
from trireme.serving.pipelined import tensor_spec_of
from trireme.support.errors import RunError


def sleeping(seconds, key):
    def stage(values, last):
        time.sleep(seconds)
        return {key: values["x"] + 1}

    return stage


def test_stages_work_on_different_requests_at_once():
    """Each stage waits until all three are at work: they never are unless stages overlap."""
    together = threading.Barrier(3)

    def stage(values, last):
        if 3 <= values["x"] < 10:
            together.wait(20)
        return {"y": values["x"]}

    def begins(offset):
        return lambda values, last: stage({"x": values["x"] + offset}, last) and values

    stages = [(one, begins(offset)) for offset, one in enumerate("abc")]
    with StagedPipeline(stages) as pipeline:
        futures = [pipeline.submit({"x": np.array(one)}) for one in range(20)]
        found = [int(one.result(30)["x"]) for one in futures]
    assert found == list(range(20))


@pytest.mark.timed
def test_throughput_is_that_of_the_slowest_stage():
    """Stages that sleep: 5, 20 and 5 ms one after another take 20 ms a request."""
    slowest, count, quick = 0.02, 50, 0.005
    stages = [(one, sleeping(slowest if one == "b" else quick, one)) for one in "abc"]
    with StagedPipeline(stages) as pipeline:
        began = time.perf_counter()
        futures = [pipeline.submit({"x": np.array(one)}) for one in range(count)]
        found = [int(one.result()["c"]) for one in futures]
        took = time.perf_counter() - began
    assert found == list(range(1, count + 1))
    assert took <= _alone(slowest, count) / 0.95 + 4 * quick


def _alone(seconds, count):
    """What the slowest stage takes by itself."""
    began = time.perf_counter()
    for _ in range(count):
        time.sleep(seconds)
    return time.perf_counter() - began


def test_a_stage_with_two_workers_takes_two_requests_at_once():
    together = threading.Barrier(2)
    stages = [("a", lambda values, last: together.wait(20) is not None and values)]
    with StagedPipeline(stages, 4, [2]) as pipeline:
        for one in [pipeline.submit({"x": np.array(0)}) for _ in range(20)]:
            one.result(30)


def test_queues_are_bounded():
    """While the second stage stands still, only so many requests are taken in."""
    go_on, taken = threading.Event(), []

    def first(values, last):
        taken.append(1)
        return values

    def second(values, last):
        assert go_on.wait(20)
        return values

    with StagedPipeline([("a", first), ("b", second)], depth=2) as pipeline:
        assert pipeline.capacity == 6
        submitting = threading.Thread(
            target=lambda: [pipeline.submit({"x": np.array(0)}) for _ in range(20)]
        )
        submitting.start()
        time.sleep(0.3)
        assert len(taken) == 4
        go_on.set()
        submitting.join()
    assert len(taken) == 20


def test_an_error_is_its_requests_alone():
    def odd(values, last):
        if values["x"] % 2:
            raise ValueError("odd")
        return {"y": values["x"]}

    with StagedPipeline([("a", odd), ("b", lambda values, last: last)]) as pipeline:
        futures = [pipeline.submit({"x": np.array(one)}) for one in range(10)]
        for one, future in enumerate(futures):
            if one % 2:
                with pytest.raises(ValueError, match="odd"):
                    future.result()
            else:
                assert future.result() == {"y": one}


def test_closing_finishes_what_was_submitted():
    pipeline = StagedPipeline([("a", sleeping(0.01, "a")), ("b", sleeping(0.01, "b"))], 8)
    futures = [pipeline.submit({"x": np.array(0)}) for _ in range(8)]
    pipeline.close()
    assert all(one.done() for one in futures)
    with pytest.raises(RunError, match="closed"):
        pipeline.submit({"x": np.array(0)})
    pipeline.close()


def test_a_deadline_skips_the_stages_to_come():
    reached = []

    def last_stage(values, last):
        reached.append(1)
        return values

    with StagedPipeline([("a", sleeping(0.2, "a")), ("b", last_stage)]) as pipeline:
        with pytest.raises(ServingError, match="deadline") as caught:
            outputs_within(pipeline.submit({"x": np.array(0)}), 0.02)
        assert caught.value.kind == "deadline"
    assert not reached


@pytest.fixture
def functions(monkeypatch):
    """A module with stages."""
    module = types.ModuleType("stages_of_a_test")
    module.double = lambda values: {"doubled": values["raw"].astype(np.float32) * 2}
    module.wrong = lambda values: 3
    module.number = 7
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def models(folder, **pipelines):
    return open_models(
        ServeConfig(
            server=ServerSettings(repository=str(folder), poll_s=0),
            defaults=ModelSettings(threads=1),
            pipelines=pipelines,
        )
    )


@pytest.fixture
def folder(tmp_path):
    put_version(tmp_path, "first", 1, affine_model(2))
    put_version(tmp_path, "second", 1, affine_model(3))
    return tmp_path


def test_models_and_functions_in_a_row(folder, functions):
    chain = PipelineSettings(
        stages=[f"{functions}:double", "first", "second"], inputs={"raw": "UINT8[-1,4]"}
    )
    served = models(folder, chain=chain)
    raw = np.arange(8, dtype=np.uint8).reshape(2, 4)
    with served.lease("chain") as model:
        assert [(one.name, one.datatype, one.open_shape) for one in model.inputs] == [
            ("raw", "UINT8", [-1, 4])
        ]
        assert [one.name for one in model.outputs] == ["y"]
        found = model.run({"raw": raw})["y"]
    doubled = raw.astype(np.float32) * 2
    with served.lease("first") as first, served.lease("second") as second:
        wanted = second.run({"x": first.run({"x": doubled})["y"]})["y"]
    assert found.tobytes() == wanted.tobytes()
    assert {row.name for row in served.index()} == {"chain", "first", "second"}
    for call in (lambda: served.load("chain", {}), lambda: served.unload("chain")):
        with pytest.raises(ServingError, match="'chain' is a pipeline"):
            call()
    served.close()


def test_models_with_inputs_of_one_name(folder):
    """The second takes the output of the first, not the input of the request."""
    served = models(folder, chain=PipelineSettings(stages=["first", "second"]))
    with served.lease("chain") as model:
        assert (model.run({"x": np.ones((1, 4), np.float32)})["y"] == 10).all()
    served.close()


def test_a_pipeline_follows_a_reload(folder):
    served = models(folder, chain=PipelineSettings(stages=["first"]))
    x = np.ones((1, 4), np.float32)
    with served.lease("chain") as model:
        assert (model.run({"x": x})["y"] == 3).all()
        put_version(folder, "first", 2, affine_model(5))
        served.load("first", {})
        assert (model.run({"x": x})["y"] == 6).all()
        served.unload("first")
        with pytest.raises(ServingError, match="unloaded"):
            model.run({"x": x})
    served.close()


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"stages": []}, "has no stages"),
        ({"stages": ["none"]}, "there is no model 'none'"),
        (
            {"stages": ["none.of:these"], "inputs": {"a": "FP32[]"}, "outputs": {"a": "FP32[]"}},
            "cannot be imported",
        ),
        ({"stages": ["MODULE:double", "first"]}, "inputs are needed"),
        ({"stages": ["first", "MODULE:double"]}, "outputs are needed"),
        ({"stages": ["MODULE:number", "first"], "inputs": {"a": "FP32[]"}}, "is no function"),
        ({"stages": ["MODULE:double", "first"], "inputs": {"a": "FP32"}}, "expected a type"),
    ],
)
def test_pipelines_that_cannot_be_made(folder, functions, settings, words):
    stages = [one.replace("MODULE", functions) for one in settings["stages"]]
    with pytest.raises(RunError, match=words):
        models(folder, chain=PipelineSettings(**{**settings, "stages": stages}))


def test_a_function_that_returns_no_arrays(folder, functions):
    chain = PipelineSettings(stages=[f"{functions}:wrong", "first"], inputs={"raw": "UINT8[4]"})
    served = models(folder, chain=chain)
    with (
        served.lease("chain") as model,
        pytest.raises(ServingError, match="returned no mapping of arrays"),
    ):
        model.run({"raw": np.zeros(4, np.uint8)})
    served.close()


def test_a_name_of_two(folder):
    with pytest.raises(RunError, match="a model has that name too"):
        models(folder, first=PipelineSettings(stages=["second"]))


@pytest.mark.parametrize("text", ["FP32", "FP31[1]", "FP32[a]", "FP32[-2]", "[1]", "FP32[1", ""])
def test_wrong_tensor_texts(text):
    with pytest.raises(RunError, match="expected a type and a shape"):
        tensor_spec_of("x", text)
