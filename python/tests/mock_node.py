"""A node for tests: the other side of docs/bridge.md, strict about what a trainer says. It has no peers and no run."""

import contextlib
import fcntl
import json
import os
import re
import socket
import struct
import tempfile
import threading

import numpy as np

FRAME_MAX = 1 << 20
PAGE = 4096
# <linux/fcntl.h>: seals of a memory file against other sizes, and against other seals.
F_ADD_SEALS, SEALS = 1033, 0x1 | 0x2 | 0x4
# A test that hangs fails after this time.
PATIENCE = 60.0


class Gone(Exception):
    """The trainer closed the connection."""


class Failed(Exception):
    """The trainer answered that it cannot."""


def of(message, name, kind, optional=False):
    value = message.get(name)
    assert (optional and value is None) or type(value) is kind, f"{name} is {value!r} in {message}"
    return value


class Node:
    """A node's socket in a home of its own."""

    def __init__(self, unit=4, steps=5, private=False, samples=None, home=None):
        self.folder = None if home else tempfile.TemporaryDirectory()
        self.home = home or self.folder.name
        self.unit, self.steps, self.private, self.samples = unit, steps, private, samples
        self.path = os.path.join(self.home, "trainer.sock")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        os.chmod(self.path, 0o600)
        self.listener.listen(4)
        self.listener.settimeout(PATIENCE)
        self.founded, self.saved, self.session = None, None, None

    def accept(self):
        """The next trainer, before its `hello` is answered."""
        stream, _ = self.listener.accept()
        stream.settimeout(PATIENCE)
        self.session = Session(self, stream)
        return self.session

    def welcome(self):
        """The next trainer, greeted."""
        session = self.accept()
        session.hear_hello()
        session.welcome()
        return session

    def close(self):
        self.listener.close()
        if self.session:
            self.session.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        if self.folder:
            self.folder.cleanup()


class Session:
    """One connection of a trainer."""

    def __init__(self, node, stream):
        self.node, self.stream, self.id, self.said = node, stream, 0, []
        self.memory, self.tensors, self.hello = None, [], None

    # Frames.

    def send(self, message, files=()):
        text = json.dumps(message, allow_nan=False).encode()
        socket.send_fds(self.stream, [struct.pack("<I", len(text)) + text], list(files))

    def take(self, count):
        data = b""
        while len(data) < count:
            try:
                piece = self.stream.recv(count - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise Gone
            data += piece
        return data

    def receive(self):
        length = struct.unpack("<I", self.take(4))[0]
        assert 2 <= length <= FRAME_MAX, f"a frame of {length} bytes"

        def none(what):
            raise AssertionError(f"{what} is no JSON")

        message = json.loads(self.take(length), parse_constant=none)
        assert isinstance(message, dict), f"{message!r} is no object"
        return message

    # Greeting.

    def hear_hello(self):
        self.hello = hello = self.receive()
        assert of(hello, "hello", int) == 1
        assert len(of(hello, "program", str)) <= PAGE
        assert 0 <= of(hello, "samples", int) < 1 << 48
        assert 1 <= (of(hello, "weight", int, optional=True) or 1) < 1 << 32
        frozen = of(hello, "frozen", str, optional=True)
        assert frozen is None or re.fullmatch("[0-9a-f]{64}", frozen)
        of(hello, "evaluates", bool), of(hello, "saves", bool)
        while len(self.tensors) < hello["tensors"]:
            entries = of(self.receive(), "tensors", list)
            assert entries
            for entry in entries:
                assert re.fullmatch("[!-~]{1,255}", entry["name"])
                assert len(entry["shape"]) <= 8 and all(type(n) is int and 1 <= n < 1 << 32 for n in entry["shape"])
                assert entry["kind"] in ("learned", "mean") and entry["dtype"] in ("f32", "bf16", "f16", "f64")
            self.tensors += entries
        assert len(self.tensors) == hello["tensors"] <= 16384
        kinds = [tensor["kind"] for tensor in self.tensors]
        assert kinds == sorted(kinds) and kinds[0] == "learned", "what is learned comes first"
        assert len({t["name"] for t in self.tensors}) == len(self.tensors)
        self.elements = sum(int(np.prod(t["shape"], dtype=np.int64)) for t in self.tensors)

    def welcome(self):
        node = self.node
        area = -(-8 * 2 * node.steps * node.unit // PAGE) * PAGE
        first = -(-4 * self.elements // PAGE) * PAGE
        self.areas, self.area_samples = [first, first + area], area // 8
        self.memory = os.memfd_create("starling-trainer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.memory, first + 2 * area)
        fcntl.fcntl(self.memory, F_ADD_SEALS, SEALS)
        memory = {"bytes": first + 2 * area, "parameters": 0, "areas": self.areas, "area_samples": self.area_samples}
        founds = node.founded is None
        message = {
            "welcome": 1,
            "run": "mock",
            "node": "a3" * 32,
            "founds": founds,
            "private": node.private,
            "unit": node.unit,
            "steps": node.steps,
            "elements": self.elements,
            "saved": node.saved,
            "memory": memory,
            "later": "ignored",
        }
        self.send(message, [self.memory])
        if founds:
            node.founded = self.read()

    def refuse(self, reason, why, passing=False):
        self.send({"refused": reason, "why": why, "passing": passing})
        self.close()

    # Asks.

    def ask(self, name, **fields):
        """Asks, and waits for the answer. Words beside the answer are kept."""
        self.begin(name, **fields)
        return self.answered()

    def begin(self, name, **fields):
        self.id += 1
        self.send({"ask": name, "id": self.id, **fields})

    def answered(self):
        while True:
            message = self.receive()
            if "say" in message:
                assert message["say"] in ("alive", "log")
                self.said.append(message)
                continue
            assert of(message, "answer", int) == self.id, f"{message} is not the answer to {self.id}"
            if "error" in message:
                raise Failed(message["error"])
            return message

    def load(self, theta, round=1, tokens=0, progress=0.0, flying=1, keep=False):
        theta = np.ascontiguousarray(theta, dtype="<f4")
        assert len(theta) == self.elements
        os.pwrite(self.memory, theta, 0)
        self.ask("load", round=round, base="5c" * 32, tokens=tokens, progress=progress, flying=flying, keep=keep)

    def lease(self, numbers, round=1, likely=False, area=0):
        numbers = np.asarray(numbers, dtype="<u8")
        assert len(numbers) <= self.area_samples
        if not self.node.private:
            os.pwrite(self.memory, numbers, self.areas[area])
        self.ask(
            "lease", round=round, samples=len(numbers), steps=len(numbers) // self.node.unit, area=area, likely=likely
        )

    def step(self, step, lr=0.1, tokens=0, progress=0.0):
        return self.stepped(self.ask("step", step=step, lr=lr, tokens=tokens, progress=progress))

    def stepped(self, answer):
        of(answer, "loss", float, optional=True)
        assert of(answer, "samples", int) == self.node.unit
        assert 1 <= of(answer, "weight", int) <= self.node.unit * (self.hello.get("weight") or 1)
        return answer

    def parameters(self):
        return np.frombuffer(os.pread(self.memory, 4 * self.elements, 0), "<f4").copy()

    def read(self):
        self.ask("read")
        values = self.parameters()
        assert np.isfinite(values).all()
        return values

    def evaluate(self):
        answer = self.ask("evaluate", round=1)
        of(answer, "loss", float, optional=True), of(answer, "weight", int)
        return answer

    def save(self, folder):
        os.makedirs(folder)
        self.ask("save", folder=folder)
        self.node.saved = folder

    def end(self, why="budget", text="the run is over"):
        self.ask("end", why=why, text=text)
        self.close()

    def round(self, theta, numbers, round=1, steps=None, **fields):
        """A whole round; the losses of its steps, and the trained parameters."""
        self.load(theta, round, **fields)
        self.lease(numbers, round)
        count = len(numbers) // self.node.unit if steps is None else steps
        losses = [self.step(n)["loss"] for n in range(count)]
        return losses, self.read()

    def close(self):
        self.stream.close()
        if self.memory is not None:
            os.close(self.memory)
            self.memory = None


@contextlib.contextmanager
def played(script, **options):
    """A node that does what `script(node)` says in a thread, while the test is the trainer."""
    node, failures = Node(**options), []

    def play():
        try:
            script(node)
        except BaseException as e:  # The test reports it.
            failures.append(e)
            # The trainer must not wait for a node that has failed.
            node.listener.close()
            if node.session:
                with contextlib.suppress(OSError):
                    node.session.refuse("mock", f"the mock node failed: {e!r}")

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        yield node
    except BaseException as e:
        if failures:
            raise failures[0] from e
        raise
    finally:
        if not failures:
            thread.join(PATIENCE)
        node.close()
    if failures:
        raise failures[0]
    assert not thread.is_alive(), "the node still waits for the trainer"
