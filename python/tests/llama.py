"""The built-in language model as a trainer of its own in PyTorch, for test_nodes.py: llama.py SETTING.json

The setting has the model's sizes, AdamW's options, the run's seed, and the files of training and held-out bytes.
"""

import importlib.util
import json
import math
import os
import sys

import numpy as np
import torch

from starling_flock import Flock

HERE = os.path.dirname(os.path.abspath(__file__))
VALIDATION_SEQUENCES = 64
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def model_of(sizes):
    """The model of the benches, which computes what the built-in one does."""
    path = os.path.join(HERE, "..", "..", "benches", "pytorch", "train_step.py")
    spec = importlib.util.spec_from_file_location("train_step", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Model(sizes)


def mix(z):
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def first_parameters(sizes, seed):
    """The parameters with which a run of this seed begins (docs/protocol/2-records.md)."""
    d, ffn, kv = sizes["d_model"], sizes["ffn"], sizes["d_model"] // sizes["heads"] * sizes["kv_heads"]
    shrink = math.sqrt(2 * sizes["layers"])
    # Elements, and the divisor of their spread; none for gains. Query, key, value and gate, up are neighbours.
    block = [(d, None), (d * (d + 2 * kv), 1.0), (d * d, shrink), (d, None), (2 * ffn * d, 1.0), (d * ffn, shrink)]
    parts = [(sizes["vocab"] * d, 1.0), *block * sizes["layers"], (d, None)]
    values, at = [], 0
    with np.errstate(over="ignore"):
        start = mix(np.array([seed], "<u8") + GOLDEN)
        for count, divisor in parts:
            if divisor is None:
                values.append(np.ones(count, "<f4"))
            else:
                r = mix(start + (np.arange(at, at + count, dtype="<u8") + np.uint64(1)) * GOLDEN)
                lanes = np.stack([r >> np.uint64(shift) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)])
                n = lanes.sum(axis=0).astype("<i8") - 131_070
                values.append(n.astype("<f4") * np.float32(0.02 / divisor / math.sqrt((2**32 - 1) / 3)))
            at += count
    return np.concatenate(values)


def sequences(tokens, numbers, length):
    rows = np.stack([tokens[n * length : n * length + length + 1] for n in numbers]).astype(np.int64)
    rows = torch.from_numpy(rows)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def main():
    with open(sys.argv[1]) as file:
        setting = json.load(file)
    sizes, options, length = setting["model"], setting["options"], setting["model"]["seq_len"]
    train, held_out = (np.fromfile(setting[name], np.uint8) for name in ("train", "held_out"))
    torch.set_num_threads(1)
    model = model_of(sizes)
    model.load(first_parameters(sizes, setting["seed"]))
    decayed = [p for p in model.parameters() if p.dim() > 1]
    gains = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": options["weight_decay"]}, {"params": gains, "weight_decay": 0.0}],
        betas=(options["beta1"], options["beta2"]),
        eps=options["eps"],
    )
    total = (len(held_out) - 1) // length
    count = min(total, VALIDATION_SEQUENCES)
    chosen = [n * total // count for n in range(count)]

    def validate():
        return model(*sequences(held_out, chosen, length)), count

    # The tables of angles are constants, the same on all nodes.
    samples = (len(train) - 1) // length
    flock = Flock(model, samples=samples, optimizer=optimizer, evaluate=validate, local=["cos", "sin"])
    while flock.flying:
        loss = model(*sequences(train, flock.draw(flock.unit), length))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        for group in optimizer.param_groups:
            group["lr"] = flock.lr
        optimizer.step()
        flock.step(loss)


if __name__ == "__main__":
    main()
