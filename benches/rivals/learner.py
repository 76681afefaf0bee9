"""Shared parts of the programs of `starling-lab compare`: the model, its text, its optimizer, and the printed events.

Each takes one argument, its settings as JSON, and prints one JSON object a line: {"event": NAME, ...}.
"""

import json
import os
import sys
import time

# Waiting threads must not spin: all processes share the machine's cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "pytorch"))

import numpy as np
import torch
from train_step import Model

DEVIATION = 0.02
PLAIN_STEPS = 20


def emit(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


class Learner:
    def __init__(self, c):
        self.c, self.o = c, c["inner"]
        torch.set_num_threads(c["threads"])
        torch.manual_seed(c["seed"])
        self.model = Model(c["model"])
        self.initialize()
        length = c["model"]["seq_len"]
        self.text = torch.from_numpy(np.fromfile(c["train"], np.uint8).astype(np.int64))
        self.sequences = (len(self.text) - 1) // length
        self.held_out = held_out(c["held_out"], length, c["validate_sequences"])
        self.order = self.shuffled()
        self.steps = 0

    def initialize(self):
        """Starling's deviations: 0.02, over sqrt(2 layers) for projections onto the residual stream; gains are one."""
        shrink = (2 * self.c["model"]["layers"]) ** 0.5
        with torch.no_grad():
            for name, tensor in self.model.named_parameters():
                if tensor.dim() > 1:
                    residual = "o_proj" in name or "down_proj" in name
                    tensor.normal_(0.0, DEVIATION / (shrink if residual else 1.0))

    def shuffled(self):
        """This process's sequences in turn: each process has others, in an order drawn from the seed."""
        chance = torch.Generator().manual_seed(self.c["seed"])
        while True:
            order = torch.randperm(self.sequences, generator=chance)
            yield from order[self.c["index"] :: self.c["nodes"]].tolist()

    def batch(self):
        length = self.c["model"]["seq_len"]
        starts = [next(self.order) * length for _ in range(self.o["batch"])]
        rows = torch.stack([self.text[at : at + length + 1] for at in starts])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def groups(self):
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        gains = [p for p in self.model.parameters() if p.dim() == 1]
        return [{"params": decayed, "weight_decay": self.o["weight_decay"]}, {"params": gains, "weight_decay": 0.0}]

    def adamw(self, groups):
        o = self.o
        return torch.optim.AdamW(groups, lr=0.0, betas=(o["beta1"], o["beta2"]), eps=o["eps"], fused=True)

    def set_rate(self, optimizer):
        """A linear warm-up, then constant, as in Starling's runs without a budget."""
        rate = self.o["lr"] * min(1.0, (self.steps + 1) / max(1, self.o["warmup_steps"]))
        for group in optimizer.param_groups:
            group["lr"] = rate

    def backward(self, model):
        inputs, targets = self.batch()
        loss = model(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.o["clip"])
        return loss

    def plain_seconds(self):
        """Median seconds of a step of this process alone; the parameters stay as they are."""
        kept = {name: value.clone() for name, value in self.model.state_dict().items()}
        optimizer, times = self.adamw(self.groups()), []
        for _ in range(PLAIN_STEPS):
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            self.backward(self.model)
            optimizer.step()
            times.append(time.perf_counter() - begin)
        self.model.load_state_dict(kept)
        self.model.zero_grad(set_to_none=True)
        return sorted(times)[len(times) // 2]

    def validate(self):
        """Mean nats per token of the held-out sequences; a token is a byte."""
        with torch.no_grad():
            parts = [self.model(rows[:, :-1], rows[:, 1:]).item() * len(rows) for rows in self.held_out.split(8)]
        emit("validated", steps=self.steps, nats_per_byte=sum(parts) / len(self.held_out))


def held_out(path, length, most):
    """The sequences that Starling's nodes validate on: at most so many, spread evenly."""
    text = torch.from_numpy(np.fromfile(path, np.uint8).astype(np.int64))
    total = (len(text) - 1) // length
    count = min(total, most)
    return torch.stack([text[at : at + length + 1] for at in (i * total // count * length for i in range(count))])
