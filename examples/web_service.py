"""Embed the engine in a FastAPI app.

pip install fastapi uvicorn
uvicorn web_service:app            # in this folder
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files

import numpy as np
from fastapi import FastAPI, HTTPException

import trireme

DEMO = files("trireme.tools") / "demo"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model when the server starts, and give the devices back when it stops."""
    with trireme.Session(str(DEMO / "digits.onnx"), devices=["cpu"]) as session:
        app.state.session = session
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/digits")
def digits(images: list[list[list[float]]]) -> list[int]:
    """Return the digits of some images of 8 x 8 pixels in 0..1.

    FastAPI calls this function on a thread of its own; runs of one session take turns.
    """
    session = app.state.session
    (image,), (digit,) = session.inputs, session.outputs
    batch = np.zeros(image.type.shape, np.float32)
    try:
        batch[: len(images), 0] = images
    except ValueError as error:
        raise HTTPException(422, f"expected at most {len(batch)} images of 8 x 8") from error
    scores = session.run({image.name: batch})[digit.name]
    return [int(one) for one in scores[: len(images)].argmax(1)]


async def answer(images: list[list[list[float]]]) -> list[int]:
    """Return the app's answer to one request, without a server."""
    async with lifespan(app):
        return await asyncio.to_thread(digits, images)


def main() -> None:
    """Ask the app for three digits."""
    with (DEMO / "held_out.npz").open("rb") as file, np.load(file) as held_out:
        images, labels = held_out["images"][:3], held_out["labels"][:3]
    print(f"sent {labels.tolist()}, got {asyncio.run(answer((images / 16).tolist()))}")


if __name__ == "__main__":
    main()
