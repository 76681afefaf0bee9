"""The state: schema, root, initial parameters (docs/protocol/2-records.md §2.8) and the outer step
(docs/protocol/3-reduction.md §3.8 and §3.9)."""

import math
import struct
from dataclasses import dataclass
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from payloads import Floats, decode_update
from records import Record
from specification import CHUNK, EVERY_STEP, Model, RunSpec
from wire import demand, digest, keyed, u64

STATE_CHUNK = 262_144
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class State:
    """Theta, then the moments (§2.8.1). Vectors are never written to, so that states may share them."""

    vectors: tuple[Floats, ...]
    schema: bytes

    def root(self) -> bytes:
        """§2.8.3"""
        return root_of([digest("starling state chunk v1", chunk) for chunk in self.chunks()], self.schema,
                       len(self.vectors[0]), len(self.vectors))

    def chunks(self) -> Iterator[bytes]:
        for vector in self.vectors:
            for start in range(0, len(vector), STATE_CHUNK):
                yield vector[start : start + STATE_CHUNK].tobytes()


def root_of(level: list[bytes], schema: bytes, parameters: int, vectors: int) -> bytes:
    """The root over the chunks' digests (§2.8.3)."""
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [digest("starling state node v1", *pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return digest("starling state root v1", schema, u64(parameters), bytes([vectors]), level[0])


def tensors_of(m: Model) -> list[Tensor]:
    """§2.8.2"""
    d, kv = m.d_model, m.d_model // m.heads * m.kv_heads
    found: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens", (m.vocab, d))]
    for layer in range(m.layers):
        block = [("input_layernorm", (d,)), ("self_attn.q_proj", (d, d)), ("self_attn.k_proj", (kv, d)),
                 ("self_attn.v_proj", (kv, d)), ("self_attn.o_proj", (d, d)), ("post_attention_layernorm", (d,)),
                 ("mlp.gate_proj", (m.ffn, d)), ("mlp.up_proj", (m.ffn, d)), ("mlp.down_proj", (d, m.ffn))]
        found += [(f"model.layers.{layer}.{name}", shape) for name, shape in block]
    found.append(("model.norm", (d,)))
    if not m.tied:
        found.append(("lm_head", (m.vocab, d)))
    return [Tensor(f"{name}.weight", shape) for name, shape in found]


def schema_of(tensors: list[Tensor]) -> bytes:
    """§2.8.2"""
    parts = [u64(len(tensors))]
    for tensor in tensors:
        parts += [u64(len(tensor.name)), tensor.name.encode(), u64(len(tensor.shape)), *map(u64, tensor.shape)]
    return keyed("starling schema v1", *parts).digest()


def mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """§2.3"""
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def initial_state(spec: RunSpec) -> State:
    """§2.8.5"""
    tensors, theta, at = tensors_of(spec.model), [], 0
    with np.errstate(over="ignore"):
        seed = mix(np.array([spec.seed], "<u8") + GOLDEN)
        for tensor in tensors:
            theta.append(initial_tensor(tensor, spec.model.layers, seed, at))
            at += tensor.size
    zeros = np.zeros(at, "<f4")
    moments = 2 if spec.sync.mode == EVERY_STEP else 1
    return State((np.concatenate(theta), *[zeros] * moments), schema_of(tensors))


def initial_tensor(tensor: Tensor, layers: int, seed: NDArray[np.uint64], at: int) -> Floats:
    """The tensor whose first element is element `at` of the whole vector (§2.8.5)."""
    if len(tensor.shape) == 1:
        return np.ones(tensor.size, "<f4")
    r = mix(seed + (np.arange(at, at + tensor.size, dtype="<u8") + np.uint64(1)) * GOLDEN)
    lanes = np.stack([r >> np.uint64(shift) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)])
    n: NDArray[np.int64] = lanes.sum(axis=0).astype("<i8") - 131_070
    shrink = math.sqrt(2 * layers) if tensor.name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
    return n.astype("<f4") * np.float32(0.02 / shrink / math.sqrt((2**32 - 1) / 3))


def read_manifest(spec: RunSpec, data: bytes) -> tuple[bytes, list[bytes]]:
    """The schema digest and the chunks' digests of a manifest of this run (§2.8.4)."""
    vectors = 3 if spec.sync.mode == EVERY_STEP else 2
    count = vectors * -(-spec.parameters // STATE_CHUNK)
    demand(len(data) == 43 + 32 * count, "§2.8.4", "the manifest has another length")
    version, schema, parameters, told = struct.unpack("<H32sQB", data[:43])
    run = spec.task.schema if spec.task is not None else schema_of(tensors_of(spec.model))
    fits = (version, schema, parameters, told) == (2, run, spec.parameters, vectors)
    demand(fits, "§2.8.4", "version, schema, P or vectors are not those of the run")
    return schema, [data[at : at + 32] for at in range(43, len(data), 32)]


def state_of(spec: RunSpec, schema: bytes, chunks: list[bytes]) -> State:
    """The state of a snapshot's chunks."""
    whole = np.frombuffer(b"".join(chunks), "<f4")
    return State(tuple(np.split(whole, len(whole) // spec.parameters)), schema)


def step(spec: RunSpec, parent: Record, record: Record, update: bytes, state: State) -> State:
    """The state after a COMMIT whose update is D (§3.8, §3.9)."""
    chunks, n = -(-spec.parameters // CHUNK), spec.sync.fragments
    f = (record.round - 1) % n
    here = slice(f * chunks // n * CHUNK, min((f + 1) * chunks // n * CHUNK, spec.parameters))
    d = decode_update(parent.next.codec, here.stop - here.start, update)
    before = [vector[here] for vector in state.vectors]
    with np.errstate(over="ignore", invalid="ignore"):
        if spec.sync.mode == EVERY_STEP:
            after = adamw(spec, parent.tokens, record.round, d, before)
        else:
            after = momentum(spec, len(record.contributors), d, before, here.start)
    demand(all(bool(np.isfinite(vector).all()) for vector in after), "§3.8", "an element is not finite after the step")
    vectors = [vector.copy() for vector in state.vectors]
    for vector, part in zip(vectors, after):
        vector[here] = part
    return State(tuple(vectors), state.schema)


def momentum(spec: RunSpec, contributors: int, d: Floats, before: list[Floats], first: int) -> list[Floats]:
    """§3.8.1, and §3.8.3 for elements of kind mean. `first` is the first element's place in the state."""
    lr, mu = np.float32(spec.outer_rate(contributors)), np.float32(spec.outer.momentum)
    theta, m = before
    moved: Floats = mu * m + d
    ahead: Floats = d + mu * moved
    stepped: Floats = theta - lr * ahead
    if spec.task is not None:
        means = slice(max(spec.task.learned - first, 0), None)
        moved[means], stepped[means] = m[means], theta[means] - d[means]
    return [stepped, moved]


def cosine(x: float) -> float:
    """c of §3.8.2."""
    z, s = math.pi * (0.5 - x), 1.0
    y = z * z
    for k in range(10, 0, -1):
        s = 1.0 - s * y / (2 * k * (2 * k + 1))
    return z * s


def power(b: float, t: int) -> float:
    """b^t of §3.8.2."""
    r, q = 1.0, b
    while t:
        if t & 1:
            r *= q
        q, t = q * q, t >> 1
    return r


def norm_of(d: Floats) -> float:
    """The norm of §3.8.2."""
    total = 0.0
    for start in range(0, len(d), CHUNK):
        chunk = d[start : start + CHUNK].astype("<f8")
        rows = np.concatenate([chunk, np.zeros(-len(chunk) % 8)]).reshape(-1, 8)
        square = 0.0
        for part in np.add.accumulate(rows * rows)[-1]:
            square += float(part)
        total += square
    return math.sqrt(total)


def adamw(spec: RunSpec, tokens: int, t: int, d: Floats, before: list[Floats]) -> list[Floats]:
    """§3.8.2, where `tokens` are those of the parent."""
    i, f32 = spec.inner, np.float32
    spent = [(t - 1, spec.budget.rounds), (tokens, spec.budget.tokens)]
    share = max(min(done / bound, 1.0) if bound else 0.0 for done, bound in spent)
    w = min(t / max(i.warmup_steps, 1), 1.0)
    lr = i.lr * w * (i.lr_final + (1 - i.lr_final) * (0.5 * (1 + cosine(share))))
    norm = norm_of(d)
    scale = f32(i.clip / norm) if i.clip > 0 and norm > i.clip else f32(1)
    rate, root = f32(lr / (1 - power(i.beta1, t))), f32(1 / math.sqrt(1 - power(i.beta2, t)))
    flat = np.concatenate([np.full(tensor.size, len(tensor.shape) == 1) for tensor in tensors_of(spec.model)])
    keep = np.where(flat, f32(1), f32(1 - lr * i.weight_decay))
    theta, m, v = before
    g = scale * d
    m = f32(i.beta1) * m + f32(1 - i.beta1) * g
    v = f32(i.beta2) * v + (f32(1 - i.beta2) * g) * g
    return [theta * keep - (rate * m) / (np.sqrt(v) * root + f32(i.eps)), m, v]
