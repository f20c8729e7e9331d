"""Embed the engine: load a model once, feed it arrays by name, get arrays by name."""

from importlib.resources import files

import numpy as np

import trireme

DEMO = files("trireme.tools") / "demo"


def main() -> None:
    """Classify handwritten digits."""
    with (DEMO / "held_out.npz").open("rb") as file, np.load(file) as held_out:
        images, labels = held_out["images"], held_out["labels"]
    with trireme.Session(str(DEMO / "digits.onnx"), devices=["cpu"], threads=1) as session:
        (image,), (digit,) = session.inputs, session.outputs
        feeds = {image.name: (images / 16).astype(np.float32)[:, None]}
        scores = session.run(feeds)[digit.name]
    print(f"{(scores.argmax(1) == labels).mean():.1%} of {len(labels)} digits are right")


if __name__ == "__main__":
    main()
