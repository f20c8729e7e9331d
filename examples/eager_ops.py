"""One op at once, on a chosen device, with values that print."""

import numpy as np

from trireme.runtime import eager


def main() -> None:
    """Multiply two matrices and look at the result."""
    rng = np.random.default_rng(0)
    x, w = rng.random((2, 3), dtype=np.float32), rng.random((3, 4), dtype=np.float32)
    y = eager.matmul(x, w, device="cpu")
    print(eager.softmax(y, axis=-1))


if __name__ == "__main__":
    main()
