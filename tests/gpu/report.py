"""Reads what the driver that computes nothing has written down, and compares it with limits.

    report.py cases LIMITS                          the cases that limits are for, one a line
    report.py assembled LIMITS                      the case whose kernels are assembled
    report.py counts LIMITS CASE LOG                launches, copies, waits and memory of each section of a log
    report.py modules LIMITS ARCHITECTURE PTXAS LOG FOLDER   assembles the modules in the folder; spills, tensor cores

Ends with 1 if a limit does not hold.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

# Instructions of tensor cores in PTX.
MMA = re.compile(r"\b(?:mma\.sync|wmma\.mma|wgmma\.mma_async|tcgen05\.mma)")


def limits(path):
    """The lines of a file of limits, split."""
    with open(path) as file:
        lines = [line.split("#")[0].split() for line in file]
    return [line for line in lines if line]


def sections(log):
    """The sections of a log in order: name, counts, and launches by module. Of a name the last one counts."""
    found, counts, modules = {}, Counter(), Counter()
    found["start"] = (counts, modules)
    with open(log) as file:
        # Two writers share the file, so that a mark may have another line in it.
        for line in re.sub(r"MARK (open|load|step|end)", r"\nMARK \1\n", file.read()).splitlines():
            if not line.strip():
                continue
            word, *rest = line.split()
            if word == "MARK":
                counts, modules = Counter(), Counter()
                found.pop(rest[0], None)
                found[rest[0]] = (counts, modules)
            elif word == "LAUNCH":
                counts["launches"] += 1
                modules[int(rest[0].split(":")[0])] += 1
            elif word in ("IN", "OUT", "WITHIN"):
                counts[word.lower()] += 1
                counts[word.lower() + "-bytes"] += int(rest[0])
                counts["pageable"] += int(rest[0]) if "pageable" in rest else 0
            elif word == "SYNC":
                counts["syncs"] += 1
            elif word == "ALLOC":
                counts["allocations"] += 1
                counts["peak"] = max(counts["peak"], int(rest[4]))
            elif word == "MODULE":
                counts["modules"] += 1
            elif word == "REFUSED":
                counts["refused"] += 1
    # Memory that was taken earlier is still there.
    peak = 0
    for counts, modules in found.values():
        peak = max(peak, counts["peak"])
        counts["peak-mb"] = -(-peak // 1_000_000)
        counts["kernels"] = len(modules)
    return found


def counts(path, case, log):
    """Prints a table; returns the limits that do not hold."""
    columns = "launches kernels modules in in-bytes out out-bytes pageable syncs allocations peak-mb".split()
    most = {(line[2], line[3]): int(line[4]) for line in limits(path) if line[0] == "count" and line[1] == case}
    found, wrong = sections(log), []
    print(f"{case:<12} {'':<6}" + "".join(f"{column:>15}" for column in columns))
    for name, (counted, _) in found.items():
        cells = []
        for column in columns:
            bound = most.pop((name, column), None)
            cells.append(f"{counted[column]}" + (f" of {bound}" if bound is not None else ""))
            if bound is not None and counted[column] > bound:
                wrong.append(f"{case}: {counted[column]} {column} in a {name}, at most {bound}")
        if any(counted.values()):
            print(f"{'':<12} {name:<6}" + "".join(f"{cell:>15}" for cell in cells))
    if not found.get("step", ({"out": 0}, None))[0]["out"]:
        said = os.path.join(os.path.dirname(log), "said")
        wrong.append(f"{case}: no step came to its report; {said} says why")
    return wrong + [f"{case}: the log has nothing for the limit of {what} in a {name}" for name, what in most]


def assemble(ptxas, architecture, path):
    """Name, registers, bytes spilled and instructions of tensor cores of a module; an error, if it is none."""
    with open(path) as file:
        text = file.read()
    entry = re.search(r"\.entry\s+(\w+)", text)
    command = [ptxas, "-v", f"-arch={architecture}", "-o", os.devnull, path]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", said))
    registers = max((int(n) for n in re.findall(r"Used (\d+) registers", said)), default=0)
    error = None if done.returncode == 0 else said.strip().splitlines()[-1:]
    return entry.group(1) if entry else "?", registers, spilled, len(MMA.findall(text)), error


def modules(path, architecture, ptxas, log, folder):
    """Assembles all modules of a log, and prints what is worth a look; returns the limits that do not hold."""
    rules = limits(path)
    hot = next(int(line[1]) for line in rules if line[0] == "hot")
    bound = next(int(line[2]) for line in rules if line[:2] == ["spills", "hot"])
    least = next((int(line[2]) for line in rules if line[:2] == ["mma", architecture]), 0)
    launched = sections(log).get("step", (Counter(), Counter()))[1]
    names = sorted(name for name in os.listdir(folder) if name.endswith(".ptx"))
    with ThreadPoolExecutor(os.cpu_count()) as team:
        results = list(team.map(lambda name: assemble(ptxas, architecture, os.path.join(folder, name)), names))
    wrong, spilling, cores, broken = [], 0, 0, 0
    for name, (entry, registers, spilled, instructions, error) in zip(names, results):
        times = launched[int(name.split(".")[0])]
        cores += bool(instructions and times)
        broken += bool(error)
        if error and broken == 1:
            wrong.append(f"{architecture}: {name} ({entry}) does not assemble: {' '.join(error)}")
        if spilled:
            spilling += 1
            print(f"  {architecture} {entry}: {times} launches a step, {registers} registers, {spilled} bytes spilled")
        if spilled > bound and times >= hot:
            wrong.append(f"{architecture}: {entry} is launched {times} times a step and spills {spilled} bytes")
    most = max((registers for _, registers, *_ in results), default=0)
    print(
        f"{architecture}: {len(names)} kernels assembled, {spilling} spill, at most {most} registers; "
        f"kernels of a step on tensor cores: {cores} (at least {least})"
    )
    if broken > 1:
        wrong.append(f"{architecture}: {broken - 1} more do not")
    if cores < least:
        wrong.append(f"{architecture}: kernels of a step on tensor cores: {cores}, at least {least}")
    return wrong


def main(what, path, *rest):
    if what == "cases":
        print("\n".join(dict.fromkeys(line[1] for line in limits(path) if line[0] == "count")))
        return 0
    if what == "assembled":
        print(next(line[1] for line in limits(path) if line[0] == "assemble"))
        return 0
    wrong = {"counts": counts, "modules": modules}[what](path, *rest)
    for line in wrong:
        print(f"FAILED {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
