"""Cuts attention's kernels for tensor cores out of cubecl's log, as C++ for the emulator.

    sources.py LOG FOLDER

Writes forward.inc, queries.inc and keys.inc into a folder for each head_dim, beside the CUDA they were made of, and
prints these head_dims. Ends with 1 if a kernel is missing.
"""

import os
import re
import sys

KERNELS = ("forward", "queries", "keys")
ENTRY = re.compile(
    r"^name: \S*attention::tensor::(\w+)::\w+_kernel::.*?dim: (\d+),\s*depth: (\d+),.*?```cpp\n(.*?)```", re.M | re.S
)
# Rows of a block are those of its four planes, 16 for each step of depth (tiling.rs).
ROWS = 4 * 16


def emulated(cuda, depth):
    """The types and the kernel. The wrappers of instructions between them are in shim.h."""
    types = "\n".join(line for line in cuda[: cuda.index("// Wrapper")].split("\n") if not line.startswith("#include"))
    kernel = cuda[cuda.index('extern "C" __global__') :].replace('extern "C" __global__ void', "static void", 1)
    kernel = re.sub(r"extern __shared__.*\n", "", kernel)
    return f"static const int ROWS = {ROWS * depth};\n{types}{kernel}"


def main(log, folder):
    found = {}
    with open(log) as text:
        # One entry of the log at a time, lest a match reaches into the next.
        for entry in text.read().split("[START_KERNEL_COMPILATION]"):
            match = ENTRY.search(entry)
            if match:
                name, dim, depth, cuda = match.groups()
                found.setdefault(int(dim), {})[name] = (cuda, int(depth))
    missing = [f"{name} of {dim}" for dim in found for name in KERNELS if name not in found[dim]]
    if missing or not found:
        sys.exit(f"the log lacks kernels: {', '.join(missing) or 'all of them'}")
    for dim, kernels in sorted(found.items()):
        os.makedirs(f"{folder}/{dim}", exist_ok=True)
        for name, (cuda, depth) in kernels.items():
            with open(f"{folder}/{dim}/{name}.cu", "w") as file:
                file.write(cuda)
            with open(f"{folder}/{dim}/{name}.inc", "w") as file:
                file.write(emulated(cuda, depth))
    print(*sorted(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
