"""A node whose trainer is several processes (DDP, FSDP): the first one has the connection, and tells the others."""

import torch
import torch.distributed as dist

from .errors import FlockError, Refused


class Ranks:
    """The connection as all processes see it. `connection` is none in all but the first."""

    def __init__(self, connection):
        self.connection = connection
        self.memory = None

    def ask(self):
        """The node's next ask, in all processes."""
        told = None
        if self.connection is not None:
            try:
                told = ("ask", self.connection.ask())
                self.memory = self.connection.memory
            except Refused as e:
                told = ("refused", (e.reason, e.why, e.passing))
            except FlockError as e:
                told = ("error", str(e))
        kind, told = broadcast(told)
        if kind == "refused":
            raise Refused(*told)
        if kind == "error":
            raise FlockError(told)
        return told

    def answer(self, **fields):
        return self.connection is not None and self.connection.answer(**fields)

    def say(self, what, **fields):
        if self.connection is not None:
            self.connection.say(what, **fields)

    def close(self):
        if self.connection is not None:
            self.connection.close()


def device():
    """The device on which processes exchange tensors."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def broadcast(told):
    """What the first process says, in all."""
    box = [told]
    dist.broadcast_object_list(box, src=0, device=device())
    return box[0]


def mean(loss, weight):
    """The mean of the losses over the processes, and the sum of the weights."""
    sums = torch.tensor([float(loss), float(weight)], dtype=torch.float64, device=device())
    dist.all_reduce(sums)
    return sums[0].item() / dist.get_world_size(), int(sums[1].item())
