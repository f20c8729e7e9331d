"""One op at once, on a chosen device, with tensors that print and read like arrays."""

import numpy as np

from trireme import eager


def main() -> None:
    """Multiply two matrices, look at the result, and go on with it as with an array."""
    rng = np.random.default_rng(0)
    x, w = rng.random((2, 3), dtype=np.float32), rng.random((3, 4), dtype=np.float32)
    y = eager.matmul(x, w, device="cpu")
    print(eager.softmax(y, axis=-1))
    for row in (y - y.mean(axis=0)) / 2:
        print(float(row.max()))


if __name__ == "__main__":
    main()
