"""Your own training loop in a Starling run.

`Flock` takes a PyTorch model; `Client` takes named arrays, of numpy, JAX or others. Both speak docs/bridge.md with a
node on the same machine, which does the rest.
"""

from .client import Client
from .errors import FlockError, NodeGone, Refused

__version__ = "0.1.0"
__all__ = ["Client", "Flock", "FlockError", "NodeGone", "Refused"]


def __getattr__(name):
    # PyTorch takes seconds to import, and is not needed for `Client`.
    if name == "Flock":
        from .flock import Flock

        return Flock
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
