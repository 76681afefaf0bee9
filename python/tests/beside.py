"""The cost of a round with a trainer outside, beside one of the built-in null trainer: 30 steps that only take time, one
node alone, about the same number of parameters. The wait of the steps themselves is taken off both.

STARLING_BIN=DIR python tests/beside.py [MILLIONS [ROUNDS]]

MILLIONS is 1, 10 or 30, as the presets are.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, STEP_MS, BATCH = 30, 20, 4
# The first rounds also warm up.
WARM = 3


def trainer(millions):
    """The trainer outside: it moves each parameter a little, once a round, so that the update is not all zeros."""
    import numpy as np

    from starling_flock import Client

    arrays = {f"w{n}": np.ones(1_000_000, np.float32) for n in range(millions)}
    client = Client(arrays, samples=1_000_000)
    round_of_last = None
    while client.flying:
        client.draw(BATCH)
        began = time.perf_counter()
        if client.progress != round_of_last:
            round_of_last = client.progress
            for array in arrays.values():
                array += 1e-6
        time.sleep(max(0, STEP_MS / 1e3 - (time.perf_counter() - began)))
        client.step(1.0)


def seconds_beyond_steps(node, rounds):
    """The rounds' median length without the time of their steps."""
    at = []
    for line in node.stdout:
        if json.loads(line)["event"] == "committed":
            at.append(time.monotonic())
        if len(at) > WARM + rounds:
            break
    lengths = [after - before for before, after in zip(at[WARM:], at[WARM + 1 :])]
    return statistics.median(lengths) - STEPS * STEP_MS / 1e3


def play(folder, name, table, more, rounds):
    run = os.path.join(folder, f"{name}.toml")
    with open(run, "w") as file:
        file.write(
            f'name = "{name}"\nseed = 5\n{table}\n[inner]\nsteps = {STEPS}\nbatch = {BATCH}\nwarmup_steps = 0\n'
            "[budget]\nrounds = 0\n[admission]\nprobation = 0\n"
        )
    command = [os.path.join(os.environ["STARLING_BIN"], "starling"), "train", "--json", "--no-mdns"]
    command += ["--metrics", "off", "--device", "cpu", "--threads", "1", "--listen", "/ip4/127.0.0.1/tcp/0"]
    command += ["--home", os.path.join(folder, name), "--run", run, "--init", *more]
    with open(os.path.join(folder, f"{name}.log"), "wb") as log:
        node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        return seconds_beyond_steps(node, rounds)
    finally:
        node.terminate()
        node.stdout.read()
        node.wait(60)


def main(millions, rounds):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        text = os.path.join(folder, "text.txt")
        with open(text, "w") as file:
            file.writelines(f"line {n}: some text {n * 7919 % 1000}\n" for n in range(20_000))
        data = f'[data]\nsources = ["{text}"]\ntokenizer = "bytes"\nholdout = 0.1'
        model = f'[model]\npreset = "{millions}m"\nseq_len = 32\n{data}'
        inside = play(folder, "inside", model, ["--null-trainer", str(STEP_MS)], rounds)
        script = [sys.executable, os.path.abspath(__file__), "trainer", str(millions)]
        outside = play(folder, "outside", '[task]\nkind = "external"', ["--", *script], rounds)
        told = {"millions": millions, "steps": STEPS, "inside_s": inside, "outside_s": outside}
        print(json.dumps({**told, "added_s": outside - inside}))


if __name__ == "__main__":
    sys.path.insert(0, os.path.join(HERE, ".."))
    if sys.argv[1:2] == ["trainer"]:
        trainer(int(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, int(sys.argv[2]) if len(sys.argv) > 2 else 12)
