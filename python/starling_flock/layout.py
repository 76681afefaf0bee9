"""The tensors of a run as `hello` names them, and their places in the memory (docs/bridge.md section 3)."""

from dataclasses import dataclass
from math import prod

from .errors import FlockError

# Kinds of tensors.
LEARNED = "learned"
MEAN = "mean"
DTYPES = ("f32", "bf16", "f16", "f64")

TENSORS_MAX = 16384
NAME_MAX = 255
DIMENSIONS_MAX = 8
ELEMENTS_MAX = 1 << 36
DIMENSION_MAX = (1 << 32) - 1
# Entries of one frame; longer lists take several.
FRAME_TENSORS = 1024


@dataclass(frozen=True)
class Tensor:
    """A tensor that the members of a run average."""

    name: str
    shape: tuple
    kind: str = LEARNED
    dtype: str = "f32"

    @property
    def elements(self):
        return prod(self.shape)

    def check(self):
        """Refuses what no node takes, by name."""
        if not 1 <= len(self.name) <= NAME_MAX or not all("!" <= c <= "~" for c in self.name):
            raise FlockError(
                f"{self.name!r} is no name for a tensor: 1 to {NAME_MAX} letters, digits or signs of ASCII, no spaces"
            )
        if self.kind not in (LEARNED, MEAN) or self.dtype not in DTYPES:
            raise FlockError(
                f"{self.name} is {self.kind} of type {self.dtype}: a run takes learned or mean of {', '.join(DTYPES)}"
            )
        if len(self.shape) > DIMENSIONS_MAX or not all(1 <= n <= DIMENSION_MAX for n in self.shape):
            raise FlockError(
                f"{self.name} has the shape {list(self.shape)}: a run takes {DIMENSIONS_MAX} dimensions, none of 0"
            )

    def entry(self):
        return {"name": self.name, "shape": list(self.shape), "kind": self.kind, "dtype": self.dtype}


def digest_head(hasher, name, dtype, shape):
    """Hashes what stands before the values of a tensor that is not trained (section 3.4)."""
    hasher.update(b"\0".join([name.encode(), dtype.encode(), "x".join(map(str, shape)).encode(), b""]))


def checked(tensors):
    """The tensors, each of which a node may take, and all together."""
    if not 1 <= len(tensors) <= TENSORS_MAX:
        raise FlockError(f"the model has {len(tensors)} tensors; a run takes 1 to {TENSORS_MAX}")
    for tensor in tensors:
        tensor.check()
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise FlockError("two tensors have the same name: rename one of them")
    if sum(tensor.elements for tensor in tensors) > ELEMENTS_MAX:
        raise FlockError(f"the model has more than {ELEMENTS_MAX} parameters, which no run takes")
    return tensors
