"""Run kernels made for another instruction set: cross-compiled, linked with a small driver in C,
and run under an emulator on memory that comes from, and goes back to, files.

Nothing of the machine at hand takes part but LLVM: the object code is what a CPU of that kind would
run. Needs a cross compiler and the emulator of user programs; `missing` says what is not there.
"""

import shutil
import struct
import subprocess
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np
from guard import POISON, key_of, output_of, size_of, span_of

from trireme.devices.cpu.codegen.emit import module_text, optimised
from trireme.devices.cpu.codegen.target import ISAS
from trireme.devices.cpu.compile.program import build, pack
from trireme.devices.cpu.kernels.lowering import CONSTANTS, At, InPlace, KernelFault, Step

GAP = 64
"""Poisoned bytes between operands."""


@dataclass(frozen=True)
class Machine:
    """A CPU to make code for, and the programs that link and run it."""

    triple: str
    cpu: str
    features: str
    linker: str
    emulator: tuple[str, ...]


MACHINES = {
    "neon": Machine(
        "aarch64-unknown-linux-gnu",
        "cortex-a76",
        "",
        "aarch64-linux-gnu-gcc",
        ("qemu-aarch64", "-cpu", "max"),
    ),
}

_DRIVER = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef void kernel(void **, int64_t, void *);
%(declarations)s
static kernel *const kernels[] = {%(table)s};
static int64_t word(FILE *f) { int64_t w; if (fread(&w, 8, 1, f) != 1) exit(2); return w; }
int main(int argc, char **argv) {
  FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
  if (argc != 3 || !in || !out) return 2;
  for (int64_t jobs = word(in); jobs > 0; jobs--) {
    int64_t size = word(in), local = word(in), steps = word(in);
    char *memory = aligned_alloc(64, (size + 127) / 64 * 64);
    char *mine = aligned_alloc(64, (local + 127) / 64 * 64);
    memset(mine, 0xA5, local);
    if (size && fread(memory, size, 1, in) != 1) return 2;
    while (steps-- > 0) {
      int64_t which = word(in), chunks = word(in), count = word(in);
      void *args[64];
      if (count > 64) return 2;
      for (int64_t i = 0; i < count; i++) args[i] = memory + word(in);
      fprintf(stderr, "%%d\n", (int)which);
      for (int64_t chunk = 0; chunk < chunks; chunk++) kernels[which](args, chunk, mine);
    }
    if (size && fwrite(memory, size, 1, out) != 1) return 2;
    free(memory);
    free(mine);
  }
  return fclose(out);
}
"""


def missing(name):
    """Return which program is not installed that running code for the machine takes; or None."""
    machine = MACHINES[name]
    wanted = (machine.linker, machine.emulator[0])
    return next((f"{tool} is not installed" for tool in wanted if not shutil.which(tool)), None)


class Job:
    """One graph's program, laid out in one piece of memory."""

    def __init__(self, graph, feeds, name):
        self.graph, self.feeds = graph, feeds
        self.program = pack(build(graph, ISAS[name], 1))
        self.native = all(isinstance(item, Step) for item in self.program.items)
        self.at, self.size = {}, GAP

    def lay_out(self, numbers):
        """Return the bytes that the driver reads; `numbers` are the kernels' by symbol."""
        program, graph = self.program, self.graph
        contents = {}
        for value in (*graph.inputs, *graph.outputs):
            if not graph.values[value].is_constant:
                self._room(value, graph.type(value).nbytes)
                if value in self.feeds:
                    contents[value] = self.feeds[value]
        for step in program.items:
            for operand in (*step.reads, *step.writes):
                operand = operand.of if isinstance(operand, At) else operand
                key = key_of(program, operand)
                if isinstance(operand, CONSTANTS):
                    contents[key] = program.constants[key[1]]
                    self._room(key, contents[key].nbytes)
                    continue
                if isinstance(operand, InPlace):
                    contents[key] = span_of(operand)
                    self._room(key, contents[key].nbytes)
                    continue
                if isinstance(operand, KernelFault):
                    contents[key] = np.zeros(2, np.int64)
                self._room(key, size_of(graph, key, operand))
        memory = np.full(self.size, POISON, np.uint8)
        for key, data in contents.items():
            flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            memory[self.at[key][0] :][: flat.size] = flat
        words = [self.size, program.local_bytes, len(program.items)]
        head = struct.pack(f"<{len(words)}q", *words)
        tail = []
        for step in program.items:
            places = [
                self.at[key_of(program, o)][0] + (o.offset if isinstance(o, At) else 0)
                for o in (*step.reads, *step.writes)
            ]
            tail += [numbers[step.code.symbol], step.chunks, len(places), *places]
        return head + memory.tobytes() + struct.pack(f"<{len(tail)}q", *tail)

    def _room(self, key, nbytes):
        if key not in self.at:
            self.at[key] = (self.size, nbytes)
            self.size += -(-nbytes // 64) * 64 + GAP

    def outputs(self, memory):
        """Return the graph's outputs from the memory as the kernels left it; check the gaps."""
        gaps = np.ones(memory.size, bool)
        for start, nbytes in self.at.values():
            gaps[start : start + nbytes] = False
        assert (memory[gaps] == POISON).all(), f"written between operands: {self.graph}"
        parts = {key: memory[start : start + size] for key, (start, size) in self.at.items()}
        return [output_of(self.program, parts, value) for value in self.graph.outputs]


def run_emulated(name, jobs, folder):
    """Return the outputs of every job, run as code for the named machine."""
    machine = MACHINES[name]
    codes = {code.symbol: code for job in jobs for code in job.program.codes}
    numbers = {symbol: number for number, symbol in enumerate(codes)}
    objects = _objects(machine, ISAS[name], list(codes.values()), folder)
    names = [f"k{number}" for number in numbers.values()]
    declarations = "\n".join(
        f'kernel {name} __asm__("{symbol}");' for name, symbol in zip(names, codes, strict=True)
    )
    text = _DRIVER % {"declarations": declarations, "table": ", ".join(names)}
    (folder / "driver.c").write_text(text)
    link = [machine.linker, "-O1", "-static", "driver.c", *objects, "-lm", "-o", "driver"]
    subprocess.run(link, cwd=folder, check=True, capture_output=True, text=True)
    data = [struct.pack("<q", len(jobs)), *(job.lay_out(numbers) for job in jobs)]
    (folder / "jobs").write_bytes(b"".join(data))
    done = subprocess.run(
        [*machine.emulator, "./driver", "jobs", "out"], cwd=folder, capture_output=True, text=True
    )
    last = done.stderr.split()[-1:]
    kernel = list(codes)[int(last[0])] if last and last[0].isdigit() else done.stderr
    assert done.returncode == 0, f"{machine.emulator[0]}: {done.returncode} in {kernel}"
    memory = np.fromfile(folder / "out", np.uint8)
    results = []
    for job in jobs:
        results.append(job.outputs(memory[: job.size]))
        memory = memory[job.size :]
    return results


def _objects(machine, isa, codes, folder):
    """Write an object file for each kernel; return their names."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=2, reloc="pic"
    )
    names = []
    for number, code in enumerate(codes):
        module = optimised(module_text(isa, code), target)
        names.append(f"k{number}.o")
        (folder / names[-1]).write_bytes(target.emit_object(module))
    return names
