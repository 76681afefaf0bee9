"""A PyTorch model in a run."""

import os
import random

import numpy as np
import torch
import torch.distributed as dist

from . import ranks
from .connection import Connection, socket_path
from .errors import FlockError
from .layout import checked
from .loop import Loop, log
from .tensors import HALVES, Tensors, digest_of

STATE = "trainer"


class Flock(Loop):
    """A PyTorch model in a run. The loop, the data and the optimizer stay the user's.

        flock = Flock(model, samples=len(data), optimizer=optimizer, evaluate=validate)
        loader = DataLoader(data, batch_size=8, sampler=flock.sampler)
        for batch in flock.batches(loader):
            loss = ...; loss.backward(); optimizer.step(); optimizer.zero_grad()
            flock.step(loss)

    `evaluate` returns a loss, or a loss and its weight. `optimizer` is one or a list; `state` is a list of further
    objects with `state_dict` (GradScaler, schedulers). Both are private to this node, and come back after a restart.
    `local` has patterns of names whose tensors stay with this node. `weight` is the largest weight of a sample. `node`
    is the home of a node that runs with `--trainer wait`. With `stay` the script waits for the next start of a node
    that was ended.
    """

    def __init__(
        self, model, samples, *, optimizer=None, evaluate=None, state=(), local=(), weight=1, node=None, stay=False
    ):
        super().__init__(samples, evaluate, stay)
        self.model = model
        self._spread, self._rank, self._world = False, 0, 1
        optimizers = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        self._kept = [kept for kept in [*optimizers, *state] if kept is not None]
        self._local, self._weight = tuple(local), weight
        self._path = socket_path(node)
        self._tensors, self._loaded = None, False

    def keep(self, kept):
        """Adds an optimizer, or another object with `state_dict`, that was made after this one."""
        self._kept.append(kept)

    def _link(self):
        # The model may have been moved or wrapped since this object was made, and other processes may have come.
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._spread, self._rank, self._world = True, dist.get_rank(), dist.get_world_size()
        self._tensors = Tensors(self.model, self._local)
        specs = checked([held.spec() for held in self._tensors.travel])
        frozen = digest_of(self._tensors.frozen) if self._tensors.frozen else None
        connection = None
        if self._rank == 0:
            hello = {
                "samples": int(self._samples),
                "weight": int(self._weight),
                "frozen": frozen,
                "evaluates": self.evaluate is not None,
            }
            connection = Connection(self._path, {**hello, "saves": True}, specs)
        return ranks.Ranks(connection) if self._spread else connection

    # Processes of one node.

    def _share(self, samples):
        if samples % self._world:
            raise FlockError(
                f"a step of {samples} samples cannot be shared by {self._world} processes: choose a multiple in [inner]"
            )
        return samples // self._world

    def _own(self, numbers):
        """This process's part of each step."""
        unit = self._welcome["unit"]
        return numbers.reshape(-1, self._world, unit // self._world)[:, self._rank].reshape(-1)

    def _total(self, loss, weight):
        loss = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
        return ranks.mean(loss, weight) if self._spread else (loss, int(weight))

    # Tensors.

    def _place(self):
        arrays = self._linked.memory.arrays if self._linked.memory is not None else {}
        for held in self._tensors.travel:
            held.place(arrays.get(held.name))
        self._loaded = False

    def _load(self):
        for held in self._tensors.travel:
            held.load(self._spread)
        self._loaded = True

    def _read(self):
        for held in self._tensors.travel:
            held.read(self._loaded)
        if self._loaded and any(held.get().dtype in HALVES for held in self._tensors.travel):
            self._load()

    def _validate(self):
        modes = [(module, module.training) for module in self.model.modules()]
        numbers = random_states()
        self.model.eval()
        try:
            with torch.no_grad():
                return self.evaluate()
        finally:
            set_random_states(numbers)
            for module, training in modes:
                module.training = training

    # Private state.

    def _save(self, folder):
        # Each process has its own random numbers; the rest is the same in all, but for what FSDP spreads.
        state = {
            "kept": [kept.state_dict() for kept in self._kept],
            "local": {name: get() for name, get in self._tensors.local.items()},
            "random": random_states(),
            "order": [self._epoch, self._position],
        }
        torch.save(state, os.path.join(folder, f"{STATE}-{self._rank}.pt"))
        if self._spread:
            dist.barrier()

    def _restore(self, folder):
        state = torch.load(os.path.join(folder, f"{STATE}-{self._rank}.pt"), map_location="cpu", weights_only=True)
        if len(state["kept"]) != len(self._kept):
            raise FlockError("it is of another number of optimizers and objects")
        for kept, values in zip(self._kept, state["kept"]):
            kept.load_state_dict(values)
        with torch.no_grad():
            for name, values in state["local"].items():
                self._tensors.local[name]().copy_(values)
        set_random_states(state["random"])
        self._epoch, self._position = state["order"]
        log.info("optimizer and random numbers are as they were at %s", folder)


def random_states():
    """The state of all random numbers that a training script draws, in types that a file may hold."""
    numpy_state = np.random.get_state()
    states = {
        "python": random.getstate(),
        "numpy": [numpy_state[0], numpy_state[1].tolist(), *numpy_state[2:]],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_random_states(states):
    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"][: torch.cuda.device_count()])
