"""Write a placement down, and hold it: the same devices for the same nodes, wherever it runs."""

import tempfile
from importlib.resources import files
from pathlib import Path

import trireme
from trireme.placement.lock import lock
from trireme.placement.lockfile import load_lock, save_lock


def main() -> None:
    """Place the demo's model, lock it, and open it again from the lock."""
    model = str(files("trireme.tools") / "demo" / "digits.onnx")
    path = Path(tempfile.mkdtemp()) / "placement.toml"
    with trireme.Session(model, devices=["npu", "cpu"]) as session:
        save_lock(lock(session.placement, trireme.__version__), path)
        before = session.placement.device_of
    with trireme.Session(model, devices=["npu", "cpu"], placement=load_lock(path)) as session:
        print("the same placement:", session.placement.device_of == before)


if __name__ == "__main__":
    main()
