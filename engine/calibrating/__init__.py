"""What is measured on this machine: kernels in small networks, copies, hand-overs; and its fit."""
