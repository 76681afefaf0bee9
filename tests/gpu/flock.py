"""Two nodes of one run on this machine, on the devices that are named, until they have twenty rounds in common.

    flock.py STARLING TEXT FOLDER DEVICE DEVICE [ROUNDS]

Both end in order then. Prints the common rounds, and whether both had the same state after each of them; ends with 1 if
not, or if a node ended by itself. Whoever calls this limits its time.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

# The budget is larger than what is waited for: a node that has spent it would not wait for the other.
RUN = """name = "two-devices"
[model]
preset = "3m"
seq_len = 128
[data]
sources = [{text}]
holdout = 0.05
[inner]
steps = 10
batch = 4
[budget]
rounds = 400
[admission]
probation = 0
"""
FLAGS = ["--json", "--no-mdns", "--metrics", "off", "--log", "info", "--listen", "/ip4/127.0.0.1/tcp/0"]


class Node:
    def __init__(self, starling, folder, name, device, more):
        self.home, self.out = folder / name, folder / f"{name}.out"
        self.err = open(folder / f"{name}.err", "w")
        flags = FLAGS + ["--home", str(self.home), "--cache", str(folder / "cache"), "--device", device]
        with open(self.out, "w") as out:
            self.process = subprocess.Popen([starling, "train", *flags, *more], stdout=out, stderr=self.err)

    def commits(self):
        """State root and number of contributors by round."""
        found = {}
        for line in self.out.read_text().splitlines():
            # The last line may not be whole yet.
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == "committed":
                found[event["round"]] = (event["state_root"], len(event["contributors"]))
        return found

    def ended(self):
        return self.process.poll() is not None

    def words(self, lines=6):
        return "\n".join(Path(self.err.name).read_text().splitlines()[-lines:])


def ticket(starling, node):
    """A ticket of the first node, as soon as it gives one."""
    while not node.ended():
        done = subprocess.run([starling, "invite", "--home", str(node.home)], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
        time.sleep(0.3)
    raise SystemExit(f"the first node ended:\n{node.words()}")


def main(starling, text, folder, first, second, rounds="20"):
    folder, began = Path(folder), time.monotonic()
    folder.mkdir(parents=True)
    run = folder / "run.toml"
    run.write_text(RUN.format(text=json.dumps(str(Path(text).resolve()))))
    nodes = [Node(starling, folder, "first", first, ["--run", str(run)])]
    try:
        nodes.append(Node(starling, folder, "second", second, ["--join", ticket(starling, nodes[0])]))
        common = []
        while len(common) < int(rounds) and not any(node.ended() for node in nodes):
            time.sleep(0.5)
            one, other = (node.commits() for node in nodes)
            common = [n for n in one if n in other and one[n][1] == other[n][1] == 2]
    finally:
        for node in nodes:
            node.process.terminate()
        for node in nodes:
            node.process.wait(30)
    one, other = (node.commits() for node in nodes)
    apart = [n for n in one if n in other and one[n][0] != other[n][0]]
    codes = [node.process.returncode for node in nodes]
    seconds = time.monotonic() - began
    print(f"{first} and {second}: {len(common)} rounds of both in {seconds:.0f} s; apart after: {apart or 'none'}")
    print(f"they ended with {codes}")
    for node in nodes:
        print(node.words())
    return 0 if len(common) >= int(rounds) and not apart and codes == [0, 0] else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
