"""A trainer of named arrays: numpy, JAX, or anything that becomes a numpy array."""

import hashlib

import numpy as np

from .connection import Connection, socket_path
from .errors import FlockError
from .layout import LEARNED, MEAN, Tensor, digest_head
from .loop import Loop

DTYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}


def digest_of(arrays):
    """SHA-256 of named arrays that are not trained (docs/bridge.md section 3.4)."""
    hasher = hashlib.sha256()
    for name in sorted(arrays, key=str.encode):
        array = np.ascontiguousarray(arrays[name])
        digest_head(hasher, name, DTYPES.get(array.dtype.name, array.dtype.name), array.shape)
        hasher.update(array.reshape(-1).view(np.uint8))
    return hasher.hexdigest()


class Client(Loop):
    """The arrays of a model in a run.

        client = Client({"w": w, "b": b}, samples=len(x), evaluate=validate)
        while client.flying:
            batch = client.draw(client.unit)
            loss = ...                         # one step with client.lr, in place
            client.step(loss)

    Arrays of numpy are read and written in place. For arrays that cannot be written (JAX) there are two functions:
    `load` takes a dictionary of numpy arrays, and `read` returns one. `mean` names the arrays that are averaged as they
    are. `save` and `restore` take a folder for what this trainer wants to find again. `frozen` holds the arrays that
    nobody trains; they must be the same in the whole run.
    """

    def __init__(
        self,
        arrays,
        samples,
        *,
        evaluate=None,
        load=None,
        read=None,
        save=None,
        restore=None,
        mean=(),
        frozen=None,
        weight=1,
        node=None,
        stay=False,
    ):
        super().__init__(samples, evaluate, stay)
        self.arrays = dict(arrays)
        self._load_hook, self._read_hook, self._save_hook, self._restore_hook = load, read, save, restore
        if (load is None) != (read is None):
            raise FlockError(
                "load= and read= come together: the one gives the arrays to the model, the other takes them from it"
            )
        tensors = []
        for name, array in self.arrays.items():
            dtype = np.asarray(array).dtype.name
            if dtype not in DTYPES:
                raise FlockError(
                    f"{name} is of type {dtype}, which no run averages: make it float32, float64, float16 or bfloat16"
                )
            if load is None and not (isinstance(array, np.ndarray) and array.flags.writeable):
                raise FlockError(f"{name} is no numpy array that can be written: give load= and read=")
            tensors.append(Tensor(name, np.shape(array), MEAN if name in mean else LEARNED, DTYPES[dtype]))
        hello = {
            "samples": int(samples),
            "weight": int(weight),
            "frozen": digest_of(frozen) if frozen else None,
            "evaluates": evaluate is not None,
            "saves": save is not None,
        }
        # The statistics come after what is learned.
        tensors.sort(key=lambda tensor: tensor.kind == MEAN)
        self._connection = Connection(socket_path(node), hello, tensors)
        self._dtypes = {name: np.asarray(array).dtype for name, array in self.arrays.items()}
        self._loaded = False

    def _link(self):
        return self._connection

    def _place(self):
        self._loaded = False

    def _load(self):
        shared = self._connection.memory.arrays
        self._loaded = True
        if self._load_hook is not None:
            self._load_hook({name: array.astype(self._dtypes[name]) for name, array in shared.items()})
            return
        for name, array in self.arrays.items():
            array[...] = shared[name]

    def _read(self):
        trained = self.arrays if self._read_hook is None else self._read_hook()
        for name, shared in self._connection.memory.arrays.items():
            offer(shared, np.asarray(trained[name]), self._dtypes[name], self._loaded)
        # What was offered is what a later read goes on from.
        if self._loaded and any(dtype.itemsize < 4 for dtype in self._dtypes.values()):
            self._load()

    def _validate(self):
        return self.evaluate()

    def _save(self, folder):
        if self._save_hook is not None:
            self._save_hook(folder)

    def _restore(self, folder):
        if self._restore_hook is not None:
            self._restore_hook(folder)


def offer(shared, trained, dtype, loaded):
    """Writes trained values to shared memory, which holds those that were loaded, if some were.

    An array of fewer bits holds a rounded copy. The difference to that copy is offered, so that what rounding took away
    stays in the vector, and a round without steps changes nothing.
    """
    if loaded and dtype.itemsize < 4:
        shared += trained.astype(np.float32) - shared.astype(dtype).astype(np.float32)
    else:
        shared[...] = trained
