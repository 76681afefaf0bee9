"""The connection to a node: greeting, memory, asks and answers, and coming back after it broke (docs/bridge.md)."""

import logging
import mmap
import os
import socket
import sys
import time
import weakref
from contextlib import suppress

import numpy as np

from . import layout
from .errors import FlockError, NodeGone, Refused
from .outlet import outlast
from .wire import Wire, field

log = logging.getLogger("starling_flock")

VERSION = 1
PROGRAM = "starling-flock 0.1.0"
SOCKET = "trainer.sock"
VARIABLE = "STARLING_TRAINER"
# The folder of the run's files: a link in the node's home, which is there once all of them are.
FILES = os.path.join("trainer", "files")
FILES_VARIABLE = "STARLING_FILES"
FILES_LOOK = 1.0
# Pauses between two tries to connect, in seconds.
PAUSE_FIRST, PAUSE_MAX = 0.1, 5.0
# The node's time for its `welcome`, and the time after which another trainer of the node is no passing matter.
WELCOME_SECONDS = 30.0
TAKEN_SECONDS = 60.0
SAY_SECONDS = 1.0

# The connections of this process by their paths. A notebook that makes its trainer anew must not be refused for the one
# that it had.
LIVE = weakref.WeakValueDictionary()

# The sockets of this process. A worker that it forks must not hold them: the node would not see this process end.
OPEN = weakref.WeakSet()


def forget_sockets():
    for stream in list(OPEN):
        stream.close()


os.register_at_fork(after_in_child=forget_sockets)


def socket_path(node=None):
    """The socket of the node that the user names (its home, or the socket), or of the one that started this process."""
    if node is None:
        path = os.environ.get(VARIABLE)
        if not path:
            raise FlockError(
                "no node is named: start this script with `starling train --run RUN.toml -- python SCRIPT`, or give "
                "node= the home of a node that runs with `--trainer wait`"
            )
        outlast()
        return path
    path = os.path.expanduser(os.fspath(node))
    return os.path.join(path, SOCKET) if os.path.isdir(path) else path


def files(node=None):
    """The folder with the files that the run file names in `[data] files`; waits until they have come from peers.

    `node` is the home of a node that runs with `--trainer wait`.
    """
    if node is None:
        folder = os.environ.get(FILES_VARIABLE)
    else:
        folder = os.path.join(os.path.expanduser(os.fspath(node)), FILES)
    if not folder:
        raise FlockError("the run has no files: name them with files = [...] below [data] in its run file")
    told = False
    while not os.path.isdir(folder):
        if not told:
            log.warning("the run's files are not in %s yet; waiting", folder)
            told = True
        time.sleep(FILES_LOOK)
    return folder


def connect(path):
    """A stream to a Unix socket; the system takes only short paths, so a long one goes through its folder."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = None
    try:
        if len(os.fsencode(path)) > 100 and sys.platform == "linux":
            folder = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY)
            path = f"/proc/self/fd/{folder}/{os.path.basename(path)}"
        stream.connect(path)
    except BaseException:
        stream.close()
        raise
    finally:
        if folder is not None:
            os.close(folder)
    return stream


class Memory:
    """The memory that node and trainer share: parameters, and two areas for the samples of a lease."""

    def __init__(self, file, places, tensors):
        count = sum(tensor.elements for tensor in tensors)
        size, start, areas = (field(places, *f) for f in (("bytes", int), ("parameters", int), ("areas", list)))
        self.area_samples = field(places, "area_samples", int)
        ends = [start + 4 * count] + [area + 8 * self.area_samples for area in areas]
        if len(areas) != 2 or min(start, *areas) < 0 or max(ends) > size or os.fstat(file).st_size < size:
            raise FlockError("the node's memory is too small for this model: it is not a node of this version")
        self.map = mmap.mmap(file, size)
        self.parameters = np.frombuffer(self.map, "<f4", count, start)
        self.areas = [np.frombuffer(self.map, "<u8", self.area_samples, area) for area in areas]
        self.arrays, at = {}, 0
        for tensor in tensors:
            self.arrays[tensor.name] = self.parameters[at : at + tensor.elements].reshape(tensor.shape)
            at += tensor.elements

    def lease(self, ask):
        """The sample numbers of a `lease`."""
        samples, area = field(ask, "samples", int), field(ask, "area", int)
        if not 0 <= samples <= self.area_samples or area not in (0, 1):
            raise FlockError(f"the node leases {samples} samples, more than fit: it is not a node of this version")
        return self.areas[area][:samples].astype(np.int64)


class Connection:
    """A trainer's side of the bridge. It connects again by itself when the node was gone."""

    def __init__(self, path, hello, tensors):
        self.path, self.hello, self.tensors = path, hello, layout.checked(tensors)
        self.wire, self.memory, self.welcome = None, None, None
        self.id, self.said = None, 0.0
        former = LIVE.get(path)
        if former is not None:
            former.close()
        LIVE[path] = self

    def ask(self):
        """The next ask; the node's `welcome` first, whenever this connection is a new one."""
        while True:
            try:
                if self.wire is None:
                    return self._greet()
                message = self.wire.receive()
                if "refused" in message:
                    raise refusal(message)
                if "ask" not in message:
                    continue
                self.id = field(message, "id", int)
                if message["ask"] == "lease" and not self.welcome["private"]:
                    message["numbers"] = self.memory.lease(message)
                return message
            except FlockError as e:
                self.close()
                if not isinstance(e, NodeGone) and not getattr(e, "passing", False):
                    raise
                log.warning("%s; trying again", e)

    def answer(self, **fields):
        """Answers the ask at hand. False if the node is gone: what was done for it is lost."""
        answered, self.id = self.id, None
        if self.wire is None or answered is None:
            return False
        try:
            self.wire.send({"answer": answered, **fields})
            return True
        except NodeGone as e:
            # Its reason may be there to be read, so the next `ask` reads it.
            log.debug("%s", e)
            return False

    def say(self, what, **fields):
        """Says something beside the answers, at most once a second; more is left out."""
        now = time.monotonic()
        if self.wire is None or now - self.said < SAY_SECONDS:
            return
        self.said = now
        with suppress(NodeGone):
            self.wire.send({"say": what, **fields})

    def close(self):
        if self.wire is not None:
            self.wire.close()
        self.wire, self.id = None, None

    def _greet(self):
        """Connects, says what this trainer has, and takes the node's memory. Tries until a node is there."""
        pause, began, told = PAUSE_FIRST, time.monotonic(), False
        while True:
            try:
                return self._greet_once()
            except (OSError, NodeGone, Refused) as e:
                self.close()
                waited = time.monotonic() - began
                if isinstance(e, Refused) and (not e.passing or e.reason == "taken" and waited > TAKEN_SECONDS):
                    raise
                if not told and waited > 1:
                    log.warning("no node answers at %s (%s); trying on", self.path, e)
                    told = True
            except BaseException:
                self.close()
                raise
            time.sleep(pause)
            pause = min(pause * 1.5, PAUSE_MAX)

    def _greet_once(self):
        stream = connect(self.path)
        OPEN.add(stream)
        self.wire = Wire(stream)
        # A node that refuses may close before all is sent. Its reason can still be read.
        with suppress(NodeGone):
            self.wire.send({"hello": VERSION, "program": PROGRAM, "tensors": len(self.tensors), **self.hello})
            for at in range(0, len(self.tensors), layout.FRAME_TENSORS):
                self.wire.send({"tensors": [t.entry() for t in self.tensors[at : at + layout.FRAME_TENSORS]]})
        stream.settimeout(WELCOME_SECONDS)
        welcome = self.wire.receive()
        stream.settimeout(None)
        if "refused" in welcome:
            raise refusal(welcome)
        if welcome.get("welcome") != VERSION or len(self.wire.files) != 1:
            raise FlockError(
                "the node's greeting is not of version 1 of the bridge: use a starling-flock of the node's release"
            )
        file = self.wire.files.pop()
        try:
            self.memory = Memory(file, field(welcome, "memory", dict), self.tensors)
        finally:
            os.close(file)
        self.welcome = welcome
        return {"ask": "welcome", **welcome}


def refusal(message):
    return Refused(str(message.get("refused")), str(message.get("why")), bool(message.get("passing")))
