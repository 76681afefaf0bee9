"""The examples, as processes of their own beside a node for tests."""

import difflib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy as np
from mock_node import Node

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples")
# A user's script needs so few changes.
CHANGED_LINES_MAX = 6


def changed_lines(before, after):
    """Lines that a user writes, changes or takes out."""
    count = 0
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            count += max(b - a, d - c)
    return count


def code(path):
    """A script's lines after its first, which says what it is."""
    with open(os.path.join(EXAMPLES, path)) as file:
        return file.read().splitlines()[1:]


class Flocks(unittest.TestCase):
    """Some nodes that average what their trainers learned, each round."""

    def fly(self, commands, rounds, steps, unit, samples, evaluates=True, lr=0.1):
        nodes = [Node(unit=unit, steps=steps) for _ in commands]
        for node in nodes:
            self.addCleanup(node.close)
        scripts = [self.start(node, command) for node, command in zip(nodes, commands)]
        sessions, theta = [], None
        for node in nodes:
            # Only the first one founds; the others begin with its parameters.
            node.founded = theta
            sessions.append(node.welcome())
            theta = node.founded
        losses, validations, position = [], [], 0
        for n in range(rounds):
            trained, threads = [None] * len(nodes), []
            for i, session in enumerate(sessions):
                numbers = np.arange(position, position + unit * steps) % samples
                position += unit * steps

                def play(i=i, session=session, numbers=numbers):
                    session.load(theta, n + 1, progress=n / rounds, flying=len(nodes))
                    if evaluates and i == 0:
                        validations.append(session.evaluate()["loss"])
                    session.lease(numbers, n + 1)
                    losses.extend(session.step(step, lr=lr)["loss"] for step in range(steps))
                    trained[i] = session.read()

                threads.append(threading.Thread(target=play))
                threads[-1].start()
            for thread in threads:
                thread.join()
            theta = np.mean(trained, axis=0, dtype=np.float32)
        ends = []
        for session, script in zip(sessions, scripts):
            session.load(theta, rounds + 1)
            if evaluates:
                ends.append(session.evaluate()["loss"])
            session.end()
            out, error = script.communicate(timeout=60)
            self.assertEqual(script.returncode, 0, error.decode())
        return losses, validations, ends

    def start(self, node, command):
        package = os.path.join(EXAMPLES, "..")
        paths = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "STARLING_TRAINER": node.path, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        script = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (script.kill(), script.communicate()))
        return script

    def test_nanogpt_becomes_a_flocks(self):
        try:
            import torch  # noqa: F401
        except ImportError as e:
            self.skipTest(f"PyTorch is not installed ({e})")
        with tempfile.TemporaryDirectory() as folder:
            text = os.path.join(folder, "text")
            with open(text, "w") as file:
                file.write("the flock flies on, and the flock lands. " * 400)
            command = [sys.executable, os.path.join(EXAMPLES, "nanogpt", "train.py"), text]
            losses, validations, ends = self.fly([command] * 2, rounds=3, steps=6, unit=16, samples=14000, lr=1e-3)
        # 256 letters that it does not know yet.
        self.assertAlmostEqual(validations[0], np.log(256), delta=0.3)
        self.assertLess(ends[0], validations[0] - 0.5)
        # Validation draws at random, but of one short text.
        self.assertAlmostEqual(ends[0], ends[1], delta=0.05)

    def test_nanogpt_changes_few_lines(self):
        changed = changed_lines(code("nanogpt/before.py"), code("nanogpt/train.py"))
        self.assertLessEqual(changed, CHANGED_LINES_MAX)
        self.assertGreater(changed, 3)

    def test_counting_changed_lines(self):
        self.assertEqual(changed_lines(["a", "b", "c"], ["a", "x", "c", "d"]), 2)
        self.assertEqual(changed_lines(["a", "b", "c"], ["c"]), 2)

    def test_numpy_learns(self):
        command = [sys.executable, os.path.join(EXAMPLES, "numpy_circles.py")]
        losses, validations, ends = self.fly([command] * 2, rounds=6, steps=100, unit=32, samples=10000, lr=1.0)
        self.assertLess(ends[0], 0.3)
        self.assertLess(ends[0], validations[0] - 0.3)
        self.assertEqual(ends[0], ends[1])

    def test_the_trainer_in_c_learns(self):
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            self.skipTest("no C compiler is installed")
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "trainer")
            source = os.path.join(EXAMPLES, "c", "trainer.c")
            subprocess.run(
                [compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-o", program, source], check=True
            )
            losses, validations, ends = self.fly([[program]] * 2, rounds=4, steps=40, unit=16, samples=4096, lr=0.1)
            self.assertLess(ends[0], 0.01 * validations[0])
            self.assertEqual(ends[0], ends[1])
            self.refused(program)

    def refused(self, program):
        node = Node()
        self.addCleanup(node.close)
        script = self.start(node, [program])
        session = node.accept()
        session.hear_hello()
        session.refuse("taken", 'another trainer says "hello"', passing=True)
        _, error = script.communicate(timeout=60)
        self.assertEqual(script.returncode, 2)
        self.assertIn(b"another trainer", error)


if __name__ == "__main__":
    unittest.main()
