"""The tensors of a PyTorch model that a run averages: names, kinds, and their way to and from the shared memory.

A tensor that is f32, contiguous and on the CPU lies in that memory itself. The others are copied at `load` and `read`.
"""

import fnmatch
import hashlib
import re
from functools import partial

import torch
import torch.distributed as dist

from .errors import FlockError
from .layout import LEARNED, MEAN, Tensor, digest_head

# Wrappers keep the user's module in an attribute of their own. These names are theirs alone.
PRIVATE_PARTS = ("_orig_mod", "_checkpoint_wrapped_module")
# These wrappers call it `module`, as users may, too; so the wrapper's class decides.
WRAPPERS = ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine")

DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
HALVES = (torch.float16, torch.bfloat16)


class Held:
    """A tensor of the model, and its place in the shared memory."""

    def __init__(self, name, kind, get):
        self.name, self.kind, self.get = name, kind, get
        self.shared = None
        self.clamped = kind == MEAN and is_variance(name)

    def spec(self):
        tensor = self.get()
        return Tensor(self.name, tuple(tensor.shape), self.kind, DTYPES[tensor.dtype])

    def place(self, array):
        """Takes the array of this tensor in the shared memory; none in a process that has no connection."""
        self.shared = None if array is None else torch.from_numpy(array)

    def load(self, spread):
        """Gives the tensor what is in the shared memory."""
        tensor = self.get()
        if self.shared is not None and self.clamped:
            self.shared.clamp_(min=0)
        if spread:
            put_in_all(tensor, self.shared)
        elif lies_alone(tensor):
            tensor.data = self.shared
        else:
            put(tensor, self.shared)

    def read(self, loaded):
        """Leaves the tensor's values in the shared memory, which holds those that were loaded, if some were.

        A tensor of fewer bits holds a rounded copy. The difference to that copy is offered, so that what rounding took
        away stays in the vector, and a round without steps changes nothing.
        """
        tensor = self.get()
        whole = whole_of(tensor)
        if self.shared is None or whole.data_ptr() == self.shared.data_ptr():
            return
        trained = whole.to("cpu", torch.float32)
        if loaded and tensor.dtype in HALVES:
            self.shared.add_(trained - self.shared.to(tensor.dtype).float())
        else:
            self.shared.copy_(trained)


def whole_of(tensor):
    """A tensor's values, collected if it is spread over the processes of a node (a DTensor of FSDP)."""
    data = tensor.detach()
    return data.full_tensor() if hasattr(data, "full_tensor") else data


def put(tensor, values):
    with torch.no_grad():
        tensor.copy_(values)


def put_in_all(tensor, values):
    """Gives the values of the first process to the tensor in all processes."""
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if values is not None:
        whole.copy_(values)
    if hasattr(tensor, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        put(tensor, distribute_tensor(whole, tensor.device_mesh, tensor.placements))
    else:
        dist.broadcast(whole, src=0)
        put(tensor, whole)


def lies_alone(tensor):
    """Whether a tensor's memory can be replaced: no other tensor has a part in it."""
    if hasattr(tensor, "full_tensor") or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        return False
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == 4 * tensor.numel()


def wrapped(model):
    """The paths of modules that a wrapper holds as `module`: their last part is no part of a name."""
    paths = set()
    for path, module in model.named_modules(remove_duplicate=False):
        if type(module).__name__ in WRAPPERS and hasattr(module, "module"):
            paths.add(f"{path}.module" if path else "module")
    return paths


def plain_name(name, paths):
    """A name without the parts that wrappers add to it."""
    parts = name.split(".")
    kept = (part for n, part in enumerate(parts) if part not in PRIVATE_PARTS and ".".join(parts[: n + 1]) not in paths)
    return ".".join(kept)


def is_variance(name):
    """Whether a buffer holds variances, by its name: an average of steps may come out below 0."""
    return re.search(r"(^|[._])var($|[._])|variance", name) is not None


class Tensors:
    """A model's tensors: those that travel, those that nobody trains, and those that stay with this node."""

    def __init__(self, model, local=()):
        self.travel, self.frozen, self.local = [], {}, {}
        paths, names = wrapped(model), {}

        if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
            raise FlockError(
                "the model is spread by FullyShardedDataParallel, whose parameters have no names: use fully_shard"
            )

        def add(name, tensor, kind, get):
            if tensor.dtype not in DTYPES:
                dtype = str(tensor.dtype).removeprefix("torch.")
                raise FlockError(
                    f"{name} is of type {dtype}, which no run averages: make it float32, or name it in local="
                )
            if names.setdefault(name, tensor) is not tensor:
                raise FlockError(f"two tensors are called {name} without their wrappers' prefixes: rename one of them")
            self.travel.append(Held(name, kind, get))

        # Tied parameters come once, under the first of their names.
        for long_name, tensor in model.named_parameters():
            name = plain_name(long_name, paths)
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in local) or not tensor.numel():
                self.local[name] = lambda tensor=tensor: tensor
            elif tensor.requires_grad:
                add(name, tensor, LEARNED, lambda tensor=tensor: tensor)
            else:
                self.frozen[name] = tensor
        if not self.travel:
            raise FlockError(
                "no parameter of the model requires a gradient, so there is nothing to train: set requires_grad"
            )
        seen = set()
        for path, module in model.named_modules():
            for key, tensor in module._buffers.items():
                if tensor is None or key in module._non_persistent_buffers_set or id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                name = plain_name(f"{path}.{key}" if path else key, paths)
                # A device may replace a buffer's tensor, so that it is looked up each time.
                get = partial(module._buffers.get, key)
                kept = any(fnmatch.fnmatchcase(name, pattern) for pattern in local)
                # Integers count something here. A buffer with infinities is a mask, which nobody changes.
                if (
                    kept
                    or not tensor.is_floating_point()
                    or not bool(torch.isfinite(tensor).all())
                    or not tensor.numel()
                ):
                    self.local[name] = get
                else:
                    add(name, tensor, MEAN, get)


def digest_of(tensors):
    """SHA-256 of named tensors that are not trained (docs/bridge.md section 3.4)."""
    hasher = hashlib.sha256()
    for name in sorted(tensors, key=str.encode):
        tensor = whole_of(tensors[name]).contiguous().cpu()
        dtype = DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        digest_head(hasher, name, dtype, tensor.shape)
        if tensor.numel():
            hasher.update(tensor.flatten().view(torch.uint8).numpy())
    return hasher.hexdigest()
