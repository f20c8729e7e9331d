"""Read a placement: where each node is, what every alternative would cost, and how good it is."""

from importlib.resources import files

import trireme


def main() -> None:
    """Place the demo's model on the simulated NPU and the CPU."""
    model = files("trireme.tools") / "demo" / "digits.onnx"
    with trireme.Session(str(model), devices=["npu", "cpu"]) as session:
        placement = session.placement
    print(
        f"{placement.makespan_s * 1e6:.0f} us predicted, at most {placement.gap:.1%} from the best"
    )
    for node in placement.source.nodes:
        choice = placement.choices[node.id]
        others = {name: f"{one.seconds * 1e6:.1f} us" for name, one in choice.estimates.items()}
        print(f"{node.op:18} {choice.device:5} {others} {dict(choice.refusals)}")
    for node, (chosen, *_) in trireme.explain(placement).nodes[:2]:
        print(f"{node.op}: {chosen.why}")


if __name__ == "__main__":
    main()
