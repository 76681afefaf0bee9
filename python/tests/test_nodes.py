"""Scripts beside real nodes. STARLING_BIN names the folder of starling's binaries; STARLING_KILLS how often a script is
killed."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

BIN = os.environ.get("STARLING_BIN")
KILLS = int(os.environ.get("STARLING_KILLS", "3"))
HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "examples")
# Seconds for anything that a test waits for.
LIMIT = 180
# A model so small that a round takes no time.
SIZES = {"vocab": 256, "d_model": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 64, "seq_len": 64}
OPTIONS = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.01, "clip": 1.0}
INNER = "[inner]\nsteps = 10\nbatch = 8\nlr = 4e-3\nlr_final = 0.1\nwarmup_steps = 10\n"
OUTER = "[outer]\nlr = [[1, 0.7]]\nmomentum = 0.6\n"


class Program:
    """A program that tells events, one JSON object a line."""

    def __init__(self, test, name, arguments, folder):
        self.name, self.events, self.more = name, [], threading.Condition()
        self.log = os.path.join(folder, f"{name}.log")
        paths = os.pathsep.join([os.path.join(HERE, ".."), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        environment.pop("STARLING_TRAINER", None)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [os.path.join(BIN, arguments[0]), *arguments[1:]], stdout=subprocess.PIPE, stderr=log, env=environment
            )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        test.addCleanup(self.end)

    def read(self):
        for line in self.process.stdout:
            with self.more:
                self.events.append(json.loads(line))
                self.more.notify_all()
        with self.more:
            self.events.append({"event": "gone"})
            self.more.notify_all()

    def mark(self):
        with self.more:
            return len(self.events)

    def wait(self, event, accept=lambda e: True, since=0):
        """The first event of this name since a mark that is accepted."""
        until, at = time.monotonic() + LIMIT, since
        with self.more:
            while True:
                for found in self.events[at:]:
                    if found["event"] == event and accept(found):
                        return found
                    if found["event"] == "gone":
                        raise AssertionError(f"{self.name} ended while {event} was awaited: {self.words()}")
                at, left = len(self.events), until - time.monotonic()
                if left <= 0 or not self.more.wait(left):
                    raise AssertionError(f"no {event} of {self.name} in {LIMIT} s: {self.words()}")

    def all(self, event):
        with self.more:
            return [found for found in self.events if found["event"] == event]

    def words(self):
        with open(self.log, errors="replace") as log:
            return "".join(log.readlines()[-12:])

    def leave(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


@unittest.skipUnless(BIN, "STARLING_BIN names no folder of starling's binaries")
class Nodes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        key = os.path.join(self.folder, "bootstrap.key")
        arguments = ["starling-bootstrap", "--listen", "/ip4/127.0.0.1/tcp/0", "--no-mdns", "--json", "--key", key]
        self.bootstrap = Program(self, "bootstrap", arguments, self.folder).wait("listening")["address"]

    def home(self, name):
        return os.path.join(self.folder, "nodes", name)

    def run_file(self, name, text):
        path = os.path.join(self.folder, f"{name}.toml")
        with open(path, "w") as file:
            file.write(f'name = "{name}"\nseed = 5\n{text}\n[admission]\nprobation = 0\n')
        return path

    def node(self, name, run=None, ticket=None, command=()):
        arguments = [
            "starling",
            "train",
            "--json",
            "--no-mdns",
            "--metrics",
            "off",
            "--device",
            "cpu",
            "--threads",
            "1",
        ]
        arguments += ["--listen", "/ip4/127.0.0.1/tcp/0", "--home", self.home(name)]
        arguments += ["--cache", os.path.join(self.folder, "cache", name)]
        if ticket is None:
            arguments += ["--run", run, "--bootstrap", self.bootstrap, "--init"]
        else:
            arguments += ["--join", ticket]
        if command:
            # The shell becomes the script, whose number is in a file beside the socket.
            command = ["sh", "-c", 'echo $$ > "$STARLING_TRAINER.pid"; exec "$0" "$@"', sys.executable, *command]
            arguments += ["--", *command]
        return Program(self, name, arguments, self.folder)

    def starling(self, *arguments):
        return subprocess.run(
            [os.path.join(BIN, "starling"), *arguments], capture_output=True, text=True, timeout=LIMIT
        )

    def ticket(self, name):
        invited = self.starling("invite", "--home", self.home(name))
        self.assertEqual(invited.returncode, 0, invited.stderr)
        return invited.stdout.strip()

    def script_of(self, name):
        with open(os.path.join(self.home(name), "trainer.sock.pid")) as file:
            return int(file.read())

    def test_three_nodes_share_a_state_and_outlive_a_script(self):
        task = '[task]\nkind = "external"\n[inner]\nsteps = 20\nbatch = 32\nlr = 1.0\nwarmup_steps = 0\n'
        run = self.run_file("circles", task + "[outer]\nlr = [[1, 0.7]]\nmomentum = 0.0\n[budget]\nrounds = 0\n")
        command = [os.path.join(EXAMPLES, "numpy_circles.py")]
        founder = self.node("founder", run=run, command=command)
        first = founder.wait("trained")
        others = [self.node(name, ticket=self.ticket("founder"), command=command) for name in "ab"]
        at = others[0].wait("committed", lambda e: e["voters"] == 3)
        for node in (founder, others[1]):
            same = node.wait("committed", lambda e: e["round"] == at["round"])
            self.assertEqual((same["record"], same["state_root"]), (at["record"], at["state_root"]))
        founder.wait("trained", lambda e: e["loss"] < 0.7 * first["loss"])

        numbers = random.Random(1)
        for kill in range(KILLS):
            since, others_since = others[0].mark(), founder.mark()
            # Somewhere in a round.
            time.sleep(numbers.uniform(0, 0.5))
            os.kill(self.script_of("a"), signal.SIGKILL)
            others[0].wait("trainer", lambda e: e["here"] is False, since)
            founder.wait("committed", since=others_since)
            others[0].wait("trainer", lambda e: e["here"] is True, since)
            with self.subTest(kill=kill):
                back = others[0].mark()
                others[0].wait("trained", since=back)
        for node in (founder, *others):
            self.assertEqual(node.leave(), 0, node.words())
        for name in ("founder", "a", "b"):
            audit = self.starling("audit", "--home", self.home(name))
            self.assertEqual(audit.returncode, 0, audit.stdout + audit.stderr)

    def text(self):
        """The documents of this repository."""
        path = os.path.join(self.folder, "text.txt")
        docs = os.path.join(HERE, "..", "..", "docs")
        names = sorted(
            os.path.join(at, name) for at, _, names in os.walk(docs) for name in names if name.endswith(".md")
        )
        with open(path, "w") as file:
            for name in names:
                with open(name) as page:
                    file.write(page.read())
        return path

    def losses(self, node):
        """Of each round, and of its validations, until the run is over."""
        node.wait("finished")
        self.assertEqual(node.process.wait(LIMIT), 0, node.words())
        return [e["loss"] for e in node.all("trained")], [e["loss"] for e in node.all("validated")]

    def built_in(self, rounds):
        """What the built-in engine learns; and its shards, of which the longer one is for training."""
        sizes = "".join(f"{key} = {value}\n" for key, value in SIZES.items())
        text = f'[data]\nsources = ["{self.text()}"]\ntokenizer = "bytes"\nholdout = 0.1\n'
        run = self.run_file("inside", f"[model]\n{sizes}tied = true\n{text}{INNER}{OUTER}[budget]\nrounds = {rounds}\n")
        losses = self.losses(self.node("inside", run=run))
        shards = os.path.join(self.folder, "cache", "inside", "shards")
        return losses, sorted((os.path.join(shards, name) for name in os.listdir(shards)), key=os.path.getsize)

    def test_the_same_model_learns_the_same_outside(self):
        try:
            import torch  # noqa: F401
        except ImportError as e:
            self.skipTest(f"PyTorch is not installed ({e})")
        rounds = 8
        (inside, inside_validated), shards = self.built_in(rounds)
        held_out, train = shards
        more = {"rope_theta": 10000.0, "norm_eps": 1e-5, "tied": True}
        setting = {"model": {**SIZES, **more}, "options": OPTIONS, "seed": 5, "train": train, "held_out": held_out}
        path = os.path.join(self.folder, "setting.json")
        with open(path, "w") as file:
            json.dump(setting, file)
        task = '[task]\nkind = "external"\n'
        run = self.run_file("outside", f"{task}{INNER}{OUTER}[budget]\nrounds = {rounds}\n")
        outside, outside_validated = self.losses(
            self.node("outside", run=run, command=[os.path.join(HERE, "llama.py"), path])
        )
        self.assertEqual(len(outside), len(inside))
        self.assertLess(outside[-1], 0.9 * outside[0])
        for a, b in zip(outside + outside_validated, inside + inside_validated):
            self.assertAlmostEqual(a / b, 1, delta=0.01)


if __name__ == "__main__":
    unittest.main()
