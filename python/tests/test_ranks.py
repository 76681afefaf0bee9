"""A trainer of two processes in one node: the first one has the connection."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from mock_node import Node

from starling_flock.loop import Loop

try:
    import torch
    import torch.distributed as dist
    from torch import nn
except ImportError as e:
    raise unittest.SkipTest(f"PyTorch is not installed ({e})")

RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")
PACKAGE = os.path.join(os.path.dirname(RANK), "..")


def alone(theta, rounds):
    """The same rounds in this process: a step of four samples at once."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for numbers in rounds:
        for step in numbers.reshape(-1, 4):
            batch = torch.tensor([[n / 1000, 1.0, -n / 1000] for n in step], dtype=torch.float32)
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


@unittest.skipUnless(dist.is_available() and dist.is_gloo_available(), "this PyTorch has no gloo")
class Ranks(unittest.TestCase):
    def fly(self, kind):
        node = Node(unit=4, steps=5)
        self.addCleanup(node.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        paths = os.pathsep.join([PACKAGE, os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "STARLING_TRAINER": node.path, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        scripts = []
        for rank in range(2):
            command = [sys.executable, RANK, str(rank), "2", os.path.join(folder.name, "meeting"), kind]
            script = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.addCleanup(lambda script=script: (script.kill(), script.communicate()))
            scripts.append(script)
        rounds = [np.arange(20), np.arange(300, 312)]
        session = node.welcome()
        want_losses, want = alone(node.founded, rounds)
        theta, losses = node.founded, []
        for n, numbers in enumerate(rounds):
            more, theta = session.round(theta, numbers, n + 1)
            losses += more
            session.evaluate()
        session.save(os.path.join(folder.name, "saved"))
        session.end()
        said = []
        for script in scripts:
            out, error = script.communicate(timeout=60)
            self.assertEqual(script.returncode, 0, error.decode())
            said.append(json.loads(out))
        names = [tensor["name"] for tensor in session.tensors]
        self.assertEqual(names, ["0.weight", "0.bias", "2.weight", "2.bias"])
        # Each process has its half of each step, and together they do what one would do.
        halves = np.concatenate(rounds).reshape(-1, 2, 2)
        for rank in range(2):
            self.assertEqual(said[rank], {"seen": halves[:, rank].reshape(-1).tolist(), "unit": 2, "flying": 0})
        np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
        np.testing.assert_allclose(theta, want, rtol=1e-5, atol=1e-6)
        self.assertEqual(sorted(os.listdir(os.path.join(folder.name, "saved"))), ["trainer-0.pt", "trainer-1.pt"])

    def test_processes_share_what_one_node_reads(self):
        loops = [Loop(samples=100) for _ in range(2)]
        for rank, loop in enumerate(loops):
            loop._welcome = {"unit": 4, "node": "ab" * 32}
            loop._share = lambda samples: samples // 2
            loop._own = lambda numbers, rank=rank: numbers.reshape(-1, 2, 2)[:, rank].reshape(-1)
            loop._do_lease({"samples": 100})
        drawn = [loop._numbers().tolist() for loop in loops]
        self.assertEqual(sorted(drawn[0] + drawn[1]), list(range(100)))

    def test_processes_of_ddp_do_one_trainers_work(self):
        self.fly("ddp")

    def test_processes_of_fsdp_do_one_trainers_work(self):
        try:
            from torch.distributed.fsdp import fully_shard  # noqa: F401
        except ImportError as e:
            self.skipTest(f"this PyTorch has no fully_shard ({e})")
        self.fly("fsdp")


if __name__ == "__main__":
    unittest.main()
