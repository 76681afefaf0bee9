"""A trainer without PyTorch: a network of one hidden layer learns to tell points inside a ring from the others.

starling train --run run.toml -- python numpy_circles.py
"""

import numpy as np

from starling_flock import Client

SAMPLES, HIDDEN = 10_000, 32
rng = np.random.default_rng(1)
points = rng.uniform(-2, 2, (SAMPLES + 1000, 2)).astype(np.float32)
radius = np.hypot(points[:, 0], points[:, 1])
inside = ((radius > 0.7) & (radius < 1.5)).astype(np.float32)

p = {
    "hidden.weight": rng.normal(0, 1, (2, HIDDEN)).astype(np.float32),
    "hidden.bias": np.zeros(HIDDEN, np.float32),
    "out.weight": rng.normal(0, 0.2, HIDDEN).astype(np.float32),
    "out.bias": np.zeros(1, np.float32),
}


def forward(x, y):
    hidden = np.tanh(x @ p["hidden.weight"] + p["hidden.bias"])
    chance = 1 / (1 + np.exp(-(hidden @ p["out.weight"] + p["out.bias"])))
    loss = -np.mean(y * np.log(chance + 1e-7) + (1 - y) * np.log(1 - chance + 1e-7))
    return hidden, chance, loss


def gradients(x, y):
    hidden, chance, loss = forward(x, y)
    out = (chance - y) / len(y)
    back = np.outer(out, p["out.weight"]) * (1 - hidden**2)
    return loss, {
        "hidden.weight": x.T @ back,
        "hidden.bias": back.sum(0),
        "out.weight": hidden.T @ out,
        "out.bias": out.sum(keepdims=True),
    }


def validate():
    return forward(points[SAMPLES:], inside[SAMPLES:])[2], 1000


flock = Client(p, samples=SAMPLES, evaluate=validate)
while flock.flying:
    batch = flock.draw(flock.unit)
    loss, g = gradients(points[batch], inside[batch])
    for name in p:
        p[name] -= flock.lr * g[name]
    flock.step(loss)
print(f"the run is over: {flock.why}; loss {validate()[0]:.4f}")
