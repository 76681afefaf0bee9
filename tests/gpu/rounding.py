"""How far gradients in bf16 are apart from those in f32, by which numbers are rounded: an emulation on the host.

    rounding.py [HIDDEN]      a model of this width (1024), two layers, two sequences of 333 tokens, a vocabulary of 257

Products sum in f32 here as on tensor cores, so that only their operands and results are rounded. The rounded numbers
are those of `kernels/gpu/src/pass.rs`. Needs NumPy alone.
"""

import sys

import numpy as np

LAYERS, SEQUENCES, TOKENS, VOCAB, HEAD, GROUP, EPS = 2, 2, 333, 257, 64, 4, 1e-5

# Numbers that the trainer rounds, those that it rounded once, and those that PyTorch's autocast rounds.
OURS = set("weights normed copy qkv rope p mixed gate act dlogits dn ds dact dgate dout dscores dqkv".split())
BEFORE = OURS | {"table", "stream"}
AUTOCAST = (OURS - {"copy"}) | {"logits", "gradients"}


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def parameters(rng, width):
    inner = width * 11 // 4
    normal = lambda *shape: (0.02 * rng.standard_normal(shape)).astype(np.float32)
    keys = width // GROUP
    shrink = np.float32((2 * LAYERS) ** -0.5)
    layer = lambda: {
        "qkv": normal(width + 2 * keys, width),
        "out": normal(width, width) * shrink,
        "gate": normal(2 * inner, width),
        "down": normal(width, inner) * shrink,
    }
    return {"table": normal(VOCAB, width), "layers": [layer() for _ in range(LAYERS)]}


class Pass:
    """One gradient with so many roundings."""

    def __init__(self, model, rounded):
        self.model, self.rounded = model, rounded
        self.width = model["table"].shape[1]
        self.heads = self.width // HEAD
        angles = np.arange(TOKENS)[:, None] * 10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.gradients = []

    def round(self, name, x):
        return bf16(x) if name in self.rounded else x

    def weight(self, x):
        return self.round("weights", x)

    def learn(self, dy, x):
        self.gradients.append(self.round("gradients", dy.T @ x))
        return self.gradients[-1]

    def turn(self, x, sign=1):
        low, high = x[..., : HEAD // 2], x[..., HEAD // 2 :]
        cos, sin = self.cos[None, :, None], sign * self.sin[None, :, None]
        return self.round("rope", np.concatenate([low * cos - high * sin, high * cos + low * sin], -1))

    def norm(self, x):
        inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
        return self.round("normed", x * inverse), inverse, self.round("copy", x)

    def norm_back(self, stream, kept, inverse, dn):
        n = kept * inverse
        self.gradients.append((dn * n).sum(0))
        return self.round("stream", stream + inverse * (dn - n * (dn * n).mean(-1, keepdims=True)))

    def attend(self, kept):
        split = lambda x, heads: x.reshape(SEQUENCES, TOKENS, heads, HEAD)
        qkv, keys = kept["qkv"], self.heads // GROUP
        q = self.turn(split(qkv[:, : self.width], self.heads))
        k = self.turn(split(qkv[:, self.width : self.width + keys * HEAD], keys))
        v = split(qkv[:, self.width + keys * HEAD :], keys)
        k, v = np.repeat(k, GROUP, 2), np.repeat(v, GROUP, 2)
        scores = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(HEAD)
        scores = np.where(np.tril(np.ones((TOKENS, TOKENS), bool)), scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        p = np.exp(scores - top)
        total = p.sum(-1, keepdims=True)
        mixed = np.einsum("bhts,bshd->bthd", self.round("p", p), v) / total.transpose(0, 2, 1, 3)
        kept |= {"q": q, "k": k, "v": v, "scores": scores - top - np.log(total)}
        return self.round("mixed", mixed.reshape(-1, self.width))

    def attend_back(self, kept, dout):
        four = dout.reshape(SEQUENCES, TOKENS, self.heads, HEAD)
        sums = (dout * kept["mixed"]).reshape(four.shape).sum(-1).transpose(0, 2, 1)[..., None]
        p = np.exp(kept["scores"])
        slopes = self.round("dscores", p * (np.einsum("bthd,bshd->bhts", four, kept["v"]) - sums))
        grouped = lambda x: x.reshape(SEQUENCES, TOKENS, self.heads // GROUP, GROUP, HEAD).sum(3)
        dv = grouped(np.einsum("bhts,bthd->bshd", self.round("p", p), four))
        dq = np.einsum("bhts,bshd->bthd", slopes, kept["k"]) / np.sqrt(HEAD)
        dk = grouped(np.einsum("bhts,bthd->bshd", slopes, kept["q"]) / np.sqrt(HEAD))
        dq, dk, dv = (self.round("dqkv", x) for x in (dq, dk, dv))
        rows = lambda x: x.reshape(SEQUENCES * TOKENS, -1)
        return np.concatenate([rows(self.turn(dq, -1)), rows(self.turn(dk, -1)), rows(dv)], 1)

    def run(self, tokens):
        inputs, targets = tokens[:, :-1].ravel(), tokens[:, 1:].ravel()
        table, layers = self.model["table"], self.model["layers"]
        stream, saved = self.round("table", table)[inputs], []
        for layer in layers:
            kept = {}
            kept["normed"], kept["inverse"], kept["x"] = self.norm(stream)
            kept["qkv"] = self.round("qkv", kept["normed"] @ self.weight(layer["qkv"]).T)
            kept["mixed"] = self.attend(kept)
            stream = self.round("stream", stream + kept["mixed"] @ self.weight(layer["out"]).T)
            kept["mlp_normed"], kept["mlp_inverse"], kept["middle"] = self.norm(stream)
            both = self.round("gate", kept["mlp_normed"] @ self.weight(layer["gate"]).T)
            kept["gate"], kept["up"] = np.split(both, 2, 1)
            kept["sigmoid"] = 1 / (1 + np.exp(-kept["gate"]))
            kept["act"] = self.round("act", kept["gate"] * kept["sigmoid"] * kept["up"])
            stream = self.round("stream", stream + kept["act"] @ self.weight(layer["down"]).T)
            saved.append(kept)
        normed, inverse, last = self.norm(stream)
        logits = self.round("logits", normed @ self.weight(table).T)
        slopes = np.exp(logits - logits.max(-1, keepdims=True))
        slopes /= slopes.sum(-1, keepdims=True)
        slopes[np.arange(len(targets)), targets] -= 1
        slopes = self.round("dlogits", slopes / len(targets))
        of_table = self.learn(slopes, normed)
        stream = self.norm_back(0, last, inverse, self.round("dn", slopes @ self.weight(table)))
        for layer, kept in zip(reversed(layers), reversed(saved)):
            stream = self.back(layer, kept, stream)
        np.add.at(of_table, inputs, stream)
        return self.gradients

    def back(self, layer, kept, stream):
        ds = self.round("ds", stream)
        dact = self.round("dact", ds @ self.weight(layer["down"]))
        self.learn(ds, kept["act"])
        gate, up, sigmoid = kept["gate"], kept["up"], kept["sigmoid"]
        slope = sigmoid * (1 + gate * (1 - sigmoid))
        dgate = self.round("dgate", np.concatenate([dact * up * slope, dact * gate * sigmoid], 1))
        self.learn(dgate, kept["mlp_normed"])
        dn = self.round("dn", dgate @ self.weight(layer["gate"]))
        stream = self.norm_back(stream, kept["middle"], kept["mlp_inverse"], dn)
        ds = self.round("ds", stream)
        dout = self.round("dout", ds @ self.weight(layer["out"]))
        self.learn(ds, kept["mixed"])
        dqkv = self.attend_back(kept, dout)
        self.learn(dqkv, kept["normed"])
        return self.norm_back(stream, kept["x"], kept["inverse"], self.round("dn", dqkv @ self.weight(layer["qkv"])))


def apart(ours, known):
    squares = lambda x: (x.astype(np.float64) ** 2).sum()
    return (sum(squares(a - b) for a, b in zip(ours, known)) / sum(squares(b) for b in known)) ** 0.5


def main(width=1024):
    rng = np.random.default_rng(1)
    model, tokens = parameters(rng, width), rng.integers(0, VOCAB, (SEQUENCES, TOKENS + 1))
    known = Pass(model, set()).run(tokens)
    said = lambda name, rounded: print(f"{name}: {apart(Pass(model, rounded).run(tokens), known):.5f}", flush=True)
    said("table and residual stream rounded, too", BEFORE)
    said("the table rounded, too", BEFORE - {"stream"})
    said("this trainer", OURS)
    said("PyTorch's autocast", AUTOCAST)
    for name in sorted(OURS):
        said(f"this trainer without {name}", OURS - {name})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
