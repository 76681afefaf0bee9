"""Trainers of named arrays: what a node asks, in the orders that happen, and what it refuses."""

import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np
from mock_node import Failed, Gone, Node, played

from starling_flock import Client, FlockError, Refused
from starling_flock.client import digest_of


def arrays():
    return {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.full(2, 7, dtype=np.float32)}


class Rounds(unittest.TestCase):
    def test_a_round_is_load_lease_steps_and_read(self):
        seen = []

        def script(node):
            session = node.welcome()
            seen.append(node.founded)
            theta = node.founded + 1
            losses, trained = session.round(theta, np.arange(100, 120), flying=3)
            seen.extend([losses, trained - theta])
            session.end()

        held = arrays()
        drawn, steps = [], 0
        with played(script, unit=4, steps=5) as node:
            client = Client(held, samples=1000, node=node.home)
            while client.flying:
                self.assertEqual(client.flying, 3)
                drawn += [client.draw(2), client.draw(2)]
                held["w"] += 1
                steps += 1
                self.assertEqual(client.step(0.5 + steps), steps < 5)
        founded, losses, difference = seen
        np.testing.assert_array_equal(founded, [0, 1, 2, 3, 4, 5, 7, 7])
        self.assertEqual(losses, [1.5, 2.5, 3.5, 4.5, 5.5])
        np.testing.assert_array_equal(difference, [5] * 6 + [0, 0])
        np.testing.assert_array_equal(np.concatenate(drawn), np.arange(100, 120))
        self.assertEqual((client.flying, client.why, client.step(1.0)), (0, "the run is over", False))

    def test_a_round_that_is_cut_short_gives_up_the_rest_of_its_lease(self):
        drawn = []

        def script(node):
            session = node.welcome()
            session.round(node.founded, np.arange(20), steps=2)
            session.load(node.founded, round=2)
            session.lease(np.arange(500, 508), round=2)
            session.step(0)
            # The next round begins without a read.
            session.load(node.founded, round=3)
            session.lease(np.arange(600, 604), round=3)
            session.step(0)
            session.end()

        with played(script) as node:
            client = Client(arrays(), samples=1000, node=node.home)
            rounds = []
            while client.flying:
                drawn.append(int(client.draw(4)[0]))
                rounds.append(client.round)
                client.step(1.0)
        self.assertEqual(drawn, [0, 4, 500, 600])
        self.assertEqual(rounds, [1, 1, 2, 3])

    def test_a_load_within_a_round_keeps_the_lease(self):
        def script(node):
            session = node.welcome()
            session.load(node.founded)
            session.lease(np.arange(12))
            session.step(0)
            session.load(node.founded + 5, keep=True)
            session.step(1)
            np.testing.assert_array_equal(session.read(), node.founded + np.float32([6] * 6 + [5] * 2))
            session.end()

        held, drawn = arrays(), []
        with played(script) as node:
            client = Client(held, samples=100, node=node.home)
            while client.flying:
                drawn.append(int(client.draw(4)[0]))
                held["w"] += 1
                client.step(1.0)
        self.assertEqual(drawn, [0, 4])

    def test_statistics_come_last(self):
        def script(node):
            session = node.welcome()
            self.assertEqual([(t["name"], t["kind"]) for t in session.tensors], [("w", "learned"), ("b", "mean")])
            session.end()

        held = {"b": np.ones(2, np.float32), "w": np.zeros(2, np.float32)}
        with played(script) as node:
            self.assertEqual(Client(held, samples=100, node=node.home, mean=["b"]).flying, 0)
        np.testing.assert_array_equal(node.founded, [0, 0, 1, 1])

    def test_reads_between_steps_change_nothing(self):
        def script(node):
            session = node.welcome()
            session.load(node.founded)
            session.lease(np.arange(12))
            session.step(0)
            first, second = session.read(), session.read()
            np.testing.assert_array_equal(first, second)
            session.step(1)
            np.testing.assert_array_equal(session.read(), first + np.float32([1] * 6 + [0] * 2))
            session.end()

        held = arrays()
        with played(script) as node:
            client = Client(held, samples=100, node=node.home)
            while client.flying:
                client.draw(4)
                held["w"] += 1
                client.step(1.0)

    def test_arrays_of_fewer_bits_offer_the_difference(self):
        theta = np.float32([1.0001, 2.0003, 3.0007])

        def script(node):
            session = node.welcome()
            session.load(theta)
            np.testing.assert_array_equal(session.read(), theta)
            np.testing.assert_array_equal(session.read(), theta)
            _, trained = session.round(theta, np.arange(4), steps=1)
            np.testing.assert_allclose(trained, theta + 0.5, atol=1e-6)
            session.end()

        for hooks in (False, True):
            held = {"w": np.ones(3, dtype=np.float16)}
            with played(script) as node:
                functions = {"load": held.update, "read": lambda: held} if hooks else {}
                client = Client(held, samples=100, node=node.home, **functions)
                while client.flying:
                    client.draw(4)
                    held["w"] += np.float16(0.5)
                    client.step(1.0)

    def test_a_likely_lease_and_the_schedule_are_shown(self):
        seen = []

        def script(node):
            session = node.welcome()
            session.load(node.founded, tokens=7)
            session.lease(np.arange(8))
            session.step(0, lr=0.25, tokens=11, progress=0.5)
            session.lease([50, 51, 52, 53], likely=True, area=1)
            session.step(1, lr=0.125, tokens=15, progress=0.75)
            session.end()

        with played(script) as node:
            client = Client(arrays(), samples=100, node=node.home)
            while client.flying:
                likely = None if client.likely is None else client.likely.tolist()
                seen.append((client.lr, client.tokens, client.progress, likely, client.draw(4).tolist()))
                client.step(1.0)
        self.assertEqual(seen, [(0.25, 11, 0.5, None, [0, 1, 2, 3]), (0.125, 15, 0.75, [50, 51, 52, 53], [4, 5, 6, 7])])

    def test_losses_without_numbers_and_validation(self):
        def script(node):
            session = node.welcome()
            session.load(node.founded)
            self.assertEqual(session.evaluate(), {"answer": 3, "loss": 0.75, "weight": 10})
            self.assertIsNone(session.evaluate()["loss"])
            session.lease(np.arange(4))
            self.assertIsNone(session.step(0)["loss"])
            session.end()

        results = [(0.75, 10), float("nan")]
        with played(script) as node:
            client = Client(arrays(), samples=100, node=node.home, evaluate=lambda: results.pop(0))
            client.draw(4)
            client.step(float("inf"))

    def test_private_data_are_numbered_here(self):
        def script(node):
            session = node.welcome()
            session.round(node.founded, np.zeros(20))
            session.round(node.founded, np.zeros(20))
            session.end()

        drawn = []
        with played(script, private=True) as node:
            client = Client(arrays(), samples=10, node=node.home)
            while client.flying:
                drawn += client.draw(4).tolist()
                client.step(1.0)
        for epoch in range(4):
            self.assertEqual(sorted(drawn[10 * epoch : 10 * epoch + 10]), list(range(10)))
        self.assertNotEqual(drawn[:10], drawn[10:20])

    def test_files_of_a_former_process_come_back(self):
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "new")

            def script(node):
                session = node.welcome()
                session.load(node.founded)
                session.lease(np.arange(4))
                session.step(0)
                session.save(saved)
                session.end("left")

            def save(folder):
                np.save(os.path.join(folder, "m.npy"), np.arange(3))

            restored = []
            with played(script) as node:
                client = Client(arrays(), samples=10, node=node.home, save=save)
                client.draw(4)
                client.step(1.0)

            def later(node):
                node.saved = saved
                # A connection that comes back has its state still.
                session = node.welcome()
                session.close()
                session = node.welcome()
                session.load(node.founded)
                session.lease(np.arange(4))
                session.step(0)
                session.end()

            with played(later) as node:
                client = Client(
                    arrays(),
                    samples=10,
                    node=node.home,
                    save=save,
                    restore=lambda f: restored.append(np.load(f + "/m.npy")),
                )
                client.draw(4)
                client.step(1.0)
            np.testing.assert_array_equal(restored, [np.arange(3)])


class Refusals(unittest.TestCase):
    def test_a_refusal_is_told_in_the_nodes_words(self):
        def script(node):
            session = node.accept()
            session.hear_hello()
            session.refuse("schema", "w: [2, 3] here, the run has [2, 4]")

        with played(script) as node:
            client = Client(arrays(), samples=10, node=node.home)
            with self.assertRaisesRegex(Refused, r"w: \[2, 3\] here, the run has \[2, 4\]"):
                client.draw(4)

    def test_a_passing_refusal_is_tried_again(self):
        def script(node):
            session = node.accept()
            session.hear_hello()
            session.refuse("taken", "another trainer is here", passing=True)
            session = node.welcome()
            session.load(node.founded)
            session.lease(np.arange(4))
            session.begin("step", step=0, lr=0.1, tokens=0, progress=0.0)
            session.refuse("silent", "no answer to step", passing=True)
            session = node.welcome()
            session.round(node.founded, np.arange(40, 44))
            session.end()

        drawn = []
        with played(script) as node:
            client = Client(arrays(), samples=10, node=node.home)
            while client.flying:
                drawn.append(client.draw(4).tolist())
                client.step(1.0)
        self.assertEqual(drawn[-1], [40, 41, 42, 43])

    def test_a_step_of_other_samples_is_refused_here(self):
        said = []

        def script(node):
            session = node.welcome()
            session.load(node.founded)
            session.lease(np.arange(8))
            try:
                session.step(0)
            except Failed as e:
                said.append(str(e))

        with played(script) as node:
            client = Client(arrays(), samples=10, node=node.home)
            client.draw(3)
            with self.assertRaisesRegex(FlockError, "drew 3 samples and draws 2 more; each step of the run uses 4"):
                client.draw(2)
            with self.assertRaisesRegex(FlockError, "used 3 samples; each step of the run uses 4"):
                client.step(1.0)
        self.assertRegex(said[0], "used 3 samples")

    def test_an_error_in_the_validation_is_told_to_the_node(self):
        said = []

        def script(node):
            session = node.welcome()
            session.load(node.founded)
            try:
                session.evaluate()
            except Failed as e:
                said.append(str(e))

        def evaluate():
            raise ValueError("no validation data")

        with played(script) as node:
            client = Client(arrays(), samples=10, node=node.home, evaluate=evaluate)
            with self.assertRaises(ValueError):
                client.draw(4)
        self.assertEqual(said, ["ValueError: no validation data"])

    def test_the_validation_may_look_but_not_draw(self):
        def script(node):
            session = node.welcome()
            session.load(node.founded, round=9)
            with self.assertRaises(Failed):
                session.evaluate()

        def evaluate():
            self.assertEqual(client.round, 9)
            client.draw(4)

        with played(script) as node:
            client = Client(arrays(), samples=10, node=node.home, evaluate=evaluate)
            with self.assertRaisesRegex(FlockError, "must not draw"):
                client.draw(4)

    def test_a_run_that_refuses_ends_the_script(self):
        def script(node):
            node.welcome().end("refused", "this node was excluded")

        with played(script) as node:
            client = Client(arrays(), samples=10, node=node.home)
            with self.assertRaisesRegex(Refused, "this node was excluded"):
                client.draw(4)

    def test_wrong_arguments_are_told_before_a_node_is_asked(self):
        environment = os.environ.pop("STARLING_TRAINER", None)
        self.addCleanup(lambda: environment and os.environ.update(STARLING_TRAINER=environment))
        with self.assertRaisesRegex(FlockError, "no node is named"):
            Client(arrays(), samples=10)
        with self.assertRaisesRegex(FlockError, "n is of type int64"):
            Client({"n": np.arange(3)}, samples=10, node="/nowhere")
        with self.assertRaisesRegex(FlockError, r"e has the shape \[0\]"):
            Client({"e": np.zeros(0, dtype=np.float32)}, samples=10, node="/nowhere")
        with self.assertRaisesRegex(FlockError, "'a b' is no name"):
            Client({"a b": np.zeros(1, dtype=np.float32)}, samples=10, node="/nowhere")

    def test_a_node_that_talks_nonsense_is_told(self):
        def frame(text):
            return struct.pack("<I", len(text)) + text

        nonsense = [
            (struct.pack("<I", (1 << 20) + 1), "frame of 1048577 bytes"),
            (frame(b"{"), "not JSON"),
            (frame(b"\xff\xfe"), "not JSON"),
            (frame(b"[1]"), "no JSON object"),
            (frame(b'{"ask": "load"}'), "no id of the right type"),
            (frame(b'{"ask": "lease", "id": 2, "samples": -1, "area": 0}'), "leases -1 samples"),
            (frame(b'{"ask": "lease", "id": 2, "samples": 100000, "area": 0}'), "leases 100000 samples"),
            (frame(b'{"ask": "lease", "id": 2, "samples": 4, "area": 2}'), "leases 4 samples"),
            (frame(b'{"ask": "dance", "id": 2}'), "asks for 'dance'"),
            (frame(b'{"ask": "step", "id": 2}'), "a step without a lease"),
        ]
        for text, why in nonsense:

            def script(node, text=text):
                session = node.welcome()
                session.stream.sendall(text)
                with self.assertRaises((Gone, Failed)):
                    session.id = 2
                    session.answered()

            with self.subTest(why), played(script) as node:
                client = Client(arrays(), samples=10, node=node.home)
                with self.assertRaisesRegex(FlockError, why):
                    client.draw(4)

    def test_a_node_of_another_version_is_told(self):
        def script(node):
            session = node.accept()
            session.hear_hello()
            session.send({"welcome": 2})
            session.close()

        with played(script) as node:
            client = Client(arrays(), samples=10, node=node.home)
            with self.assertRaisesRegex(FlockError, "not of version 1"):
                client.draw(4)


class Deaths(unittest.TestCase):
    def test_a_node_that_dies_is_found_again(self):
        drawn = []

        def script(node):
            session = node.welcome()
            session.load(node.founded)
            session.lease(np.arange(8))
            session.step(0)
            session.begin("step", step=1, lr=0.1, tokens=0, progress=0.0)
            session.close()
            node.close()
            time.sleep(0.3)
            again = Node(home=home, unit=4)
            again.founded = node.founded
            session = again.welcome()
            losses, trained = session.round(node.founded, np.arange(80, 84))
            np.testing.assert_array_equal(trained, node.founded + np.float32([1] * 6 + [0] * 2))
            session.end()
            again.close()

        held = arrays()
        with tempfile.TemporaryDirectory() as home, played(script, home=home) as node:
            client = Client(held, samples=100, node=node.path)
            while client.flying:
                drawn.append(int(client.draw(4)[0]))
                held["w"] += 1
                client.step(1.0)
        self.assertEqual(drawn, [0, 4, 80])

    def test_a_trainer_that_is_made_anew_takes_the_place_of_the_former(self):
        def script(node):
            session = node.welcome()
            session.load(node.founded)
            session.lease(np.arange(4))
            with self.assertRaises(Gone):
                session.step(0)
            session = node.welcome()
            session.end()

        with played(script) as node:
            former = Client(arrays(), samples=np.int64(100), node=node.home)
            former.draw(4)
            self.assertEqual(Client(arrays(), samples=100, node=node.home).flying, 0)

    def test_a_socket_in_a_deep_folder_is_found(self):
        def script(node):
            node.welcome().end()

        with tempfile.TemporaryDirectory() as folder:
            home = os.path.join(folder, "d" * 90)
            os.mkdir(home)
            here = os.getcwd()
            # A socket's path is short for whoever binds it; it is long for the trainer.
            os.chdir(home)
            self.addCleanup(os.chdir, here)
            with played(script, home="."):
                client = Client(arrays(), samples=10, node=home)
                self.assertEqual(client.flying, 0)

    def test_a_forked_worker_does_not_hold_the_connection(self):
        code = """
import os, sys, time
import numpy as np
from starling_flock import Client
client = Client({"w": np.zeros(2, dtype=np.float32)}, samples=10)
client.draw(4)
if os.fork() == 0:
    time.sleep(30)
    os._exit(0)
print("forked", flush=True)
time.sleep(30)
"""
        node = Node(unit=4)
        self.addCleanup(node.close)
        environment = {**os.environ, "STARLING_TRAINER": node.path, "PYTHONPATH": os.pathsep.join(sys.path)}
        # Its own group, so that its child goes with it.
        script = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, start_new_session=True
        )
        self.addCleanup(script.stdout.close)
        self.addCleanup(os.killpg, script.pid, signal.SIGKILL)
        session = node.welcome()
        session.load(node.founded)
        session.lease(np.arange(4))
        session.begin("step", step=0, lr=0.1, tokens=0, progress=0.0)
        self.assertEqual(script.stdout.readline(), b"forked\n")
        script.kill()
        script.wait()
        began = time.monotonic()
        with self.assertRaises(Gone):
            session.answered()
        self.assertLess(time.monotonic() - began, 10)

    def test_a_script_outlives_the_node_that_shows_its_lines(self):
        code = """
import sys
import numpy as np
from starling_flock import Client
client = Client({"w": np.zeros(2, dtype=np.float32)}, samples=10)
while client.flying:
    print("drawn", client.draw(4)[0])
    print("to both", file=sys.stderr)
    client.step(1.0)
"""
        with tempfile.TemporaryDirectory() as home:
            node = Node(home=home, unit=4)
            environment = {**os.environ, "STARLING_TRAINER": node.path, "PYTHONPATH": os.pathsep.join(sys.path)}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            script = subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes)
            self.addCleanup(lambda: (script.kill(), script.wait()))
            session = node.welcome()
            session.load(node.founded)
            session.lease(np.arange(4))
            session.begin("step", step=0, lr=0.1, tokens=0, progress=0.0)
            # The line comes at once, though nobody has flushed it.
            self.assertEqual(script.stdout.readline(), b"drawn 0\n")
            self.assertEqual(script.stderr.readline(), b"to both\n")
            script.stdout.close()
            script.stderr.close()
            node.close()
            again = Node(home=home, unit=4)
            self.addCleanup(again.close)
            again.founded = node.founded
            session = again.welcome()
            session.round(again.founded, np.arange(8))
            session.end()
            self.assertEqual(script.wait(30), 0)


class Digests(unittest.TestCase):
    def test_the_digest_of_frozen_arrays_is_that_of_the_page(self):
        import hashlib

        frozen = {"b": np.float32([1.5]), "a.w": np.arange(6, dtype=np.int64).reshape(2, 3)}
        whole = b"a.w\0int64\x002x3\0" + frozen["a.w"].tobytes() + b"b\0f32\x001\0" + frozen["b"].tobytes()
        self.assertEqual(digest_of(frozen), hashlib.sha256(whole).hexdigest())


if __name__ == "__main__":
    unittest.main()
