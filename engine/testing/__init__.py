"""What tests of programs that use trireme need: faults on demand."""
