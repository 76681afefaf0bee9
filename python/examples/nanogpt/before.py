"""A training script in the style of nanoGPT, for one machine: python before.py TEXT"""

import math
import sys

import numpy as np
import torch

from model import GPT

batch_size, block_size, accumulate = 8, 64, 2
max_iters, warmup_iters, learning_rate, min_lr = 2000, 100, 1e-3, 1e-4
eval_interval, eval_iters, grad_clip = 100, 10, 1.0
device = "cuda" if torch.cuda.is_available() else "cpu"

data = np.fromfile(sys.argv[1], dtype=np.uint8)
train_data, val_data = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


def get_batch(split):
    data = train_data if split == "train" else val_data
    ix = torch.randint(len(data) - block_size, (batch_size,)).tolist()
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x.to(device), y.to(device)


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / max(max_iters - warmup_iters, 1)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = [model(*get_batch("val"))[1].item() for _ in range(eval_iters)]
    model.train()
    return sum(losses) / len(losses)


model = GPT(block_size=block_size).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))

it = 0
while it < max_iters:
    lr = get_lr(it)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if it % eval_interval == 0:
        print(f"step {it}: val loss {estimate_loss():.4f}")
    for _ in range(accumulate):
        _, loss = model(*get_batch("train"))
        (loss / accumulate).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    it += 1
