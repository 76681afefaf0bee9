"""The cost of the trainer's side: a step that does nothing, and load and read of a model in copies of its parameters.

python tests/overhead.py [MILLIONS]
"""

import multiprocessing
import os
import sys
import time

import numpy as np

sys.path[:0] = [
    os.path.dirname(os.path.abspath(__file__)),
    os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."),
]

import torch
from mock_node import Node
from torch import nn

from starling_flock import Client, Flock

STEPS, ROUNDS = 3000, 20


def many_steps(node):
    session = node.welcome()
    session.load(node.founded)
    session.lease(np.arange(STEPS * node.unit))
    for step in range(STEPS):
        session.step(step)
    session.end()


def many_rounds(node):
    session = node.welcome()
    theta = node.founded
    for n in range(ROUNDS):
        session.load(theta, n + 1)
        session.lease(np.arange(node.unit), n + 1)
        session.step(0)
        session.ask("read")
    session.end()


def beside(play, **options):
    """A node that does so in a process of its own."""
    node = Node(**options)
    process = multiprocessing.get_context("fork").Process(target=play, args=(node,), daemon=True)
    process.start()
    node.listener.close()
    return node, process


def steps():
    node, process = beside(many_steps, steps=STEPS, unit=4)
    client = Client({"w": np.zeros(4, np.float32)}, samples=STEPS * 4, node=node.home)
    client.draw(4)
    client.step(1.0)
    began, cpu, count = time.perf_counter(), time.process_time(), 0
    while client.flying:
        client.draw(4)
        client.step(1.0)
        count += 1
    wall, cpu = (1e6 * t / count for t in (time.perf_counter() - began, time.process_time() - cpu))
    print(f"a step: {wall:.0f} us with this node in Python; {cpu:.0f} us of this process's CPU")
    process.join()


def rounds(millions, dtype):
    model = nn.ModuleList(nn.Linear(1000, 1000, bias=False) for _ in range(millions)).to(dtype)
    a, b = (np.ones(millions * 1_000_000, np.float32) for _ in range(2))
    began = time.perf_counter()
    for _ in range(10):
        np.copyto(a, b)
    one = (time.perf_counter() - began) / 10
    node, process = beside(many_rounds, steps=1, unit=4)
    flock = Flock(model, samples=100, node=node.home)
    assert flock.flying
    spent = []
    for name in ("_do_load", "_do_read"):
        inner = getattr(flock, name)

        def timed(ask, inner=inner):
            began = time.perf_counter()
            answer = inner(ask)
            spent.append(time.perf_counter() - began)
            return answer

        setattr(flock, name, timed)
    while flock.flying:
        flock.draw(4)
        flock.step(1.0)
    mean = 2 * sum(spent) / len(spent)
    print(f"load and read, {millions}M {dtype}: {mean * 1e3:.1f} ms, {mean / one:.1f} copies of {one * 1e3:.1f} ms")
    process.join()


if __name__ == "__main__":
    steps()
    for dtype in (torch.float32, torch.bfloat16):
        rounds(int(sys.argv[1]) if len(sys.argv) > 1 else 10, dtype)
