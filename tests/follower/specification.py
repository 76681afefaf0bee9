"""The run specification (docs/protocol/2-records.md §2.1)."""

import math
import re
from dataclasses import astuple, dataclass
from typing import Annotated, Any

from wire import B32, F64, U32, U64, ZERO, Bool, BytesOf, ListOf, OneOf, Opt, Reader, Rest, decode, demand, digest

BF16, INT8, INT4, TOPK = 1, 2, 3, 4
ROUNDS, EVERY_STEP = 1, 2
ADAMW = 1
LIST, TICKET = 2, 3
CHUNK = 32_768


@dataclass(frozen=True)
class Codec:
    """§2.1.2: k is 0 unless the codec is top-k."""

    number: int
    k: int

    @classmethod
    def read_from(cls, reader: Reader) -> "Codec":
        number = reader.one_of(OneOf(BF16, TOPK))
        k = reader.number("H") if number == TOPK else 0
        demand(number != TOPK or 1 <= k <= 1024, "§2.1.2", f"top-k with a k of {k}")
        return cls(number, k)


@dataclass(frozen=True)
class Model:
    vocab: U32
    d_model: U32
    layers: U32
    heads: U32
    kv_heads: U32
    ffn: U32
    seq_len: U32
    tied: Bool
    rope_theta: F64
    norm_eps: F64


@dataclass(frozen=True)
class Data:
    manifest: B32
    tokenizer: B32


@dataclass(frozen=True)
class Inner:
    optimizer: Annotated[int, OneOf(1, 5)]
    steps: U32
    batch: U32
    accumulate: U32
    lr: F64
    lr_final: F64
    warmup_steps: U32
    beta1: F64
    beta2: F64
    eps: F64
    weight_decay: F64
    clip: F64


@dataclass(frozen=True)
class Rate:
    contributors: U32
    rate: F64


@dataclass(frozen=True)
class Outer:
    lr: Annotated[tuple[Rate, ...], ListOf(Rate, 64)]
    momentum: F64


@dataclass(frozen=True)
class Pairs:
    steps: U32
    alpha: F64
    beta: F64
    gamma: F64


@dataclass(frozen=True)
class Sync:
    mode: Annotated[int, OneOf(1, 2)]
    codec: Codec
    engine: Annotated[int, OneOf(1, 2)]
    fragments: U32
    overlap: U32
    mixing: F64
    pairs: Annotated[Pairs | None, Opt(Pairs)]
    gap_max: U32
    coarsest: Annotated[Codec | None, Opt(Codec)]


@dataclass(frozen=True)
class Partition:
    minority: Annotated[int, OneOf(1, 3)]
    grace_ms: U32


@dataclass(frozen=True)
class Admission:
    mode: Annotated[int, OneOf(1, 3)]
    allow: Annotated[tuple[bytes, ...], ListOf(B32, 64)]
    probation: U32


@dataclass(frozen=True)
class Join:
    patience_ms: U32
    share: U32


@dataclass(frozen=True)
class Budget:
    rounds: U64
    tokens: U64


@dataclass(frozen=True)
class Task:
    """§2.8.7"""

    schema: B32
    frozen: B32
    parameters: U64
    learned: U64
    samples: U64
    weight: U32


# The model and the tokenizer of a run with a task (§2.8.7).
OF_TASK = (Model(2, 2, 1, 1, 1, 1, 1, True, 1.0, 0.1), ZERO)


@dataclass(frozen=True)
class RunSpec:
    """§2.1.1"""

    name: Annotated[bytes, BytesOf(64)]
    seed: U64
    creator: Annotated[bytes | None, Opt(B32)]
    model: Model
    data: Data
    inner: Inner
    outer: Outer
    sync: Sync
    partition: Partition
    admission: Admission
    join: Join
    budget: Budget
    beginning: Annotated[bytes | None, Rest(1, B32)]
    task: Annotated[Task | None, Rest(2, Task)]

    @property
    def unit(self) -> int:
        """Positions of a step (§2.1.5)."""
        return self.inner.batch * self.inner.accumulate

    @property
    def parameters(self) -> int:
        """§2.1.4"""
        if self.task is not None:
            return self.task.parameters
        m = self.model
        d, kv = m.d_model, m.d_model // m.heads * m.kv_heads
        return m.layers * (2 * d + 2 * d * d + 2 * d * kv + 3 * d * m.ffn) + m.vocab * d * (1 if m.tied else 2) + d

    @property
    def weight(self) -> int:
        """W of §2.1.4."""
        return self.task.weight if self.task is not None else self.model.seq_len

    def outer_rate(self, contributors: int) -> float:
        """§2.1.5 rule 2"""
        return next(r.rate for r in reversed(self.outer.lr) if r.contributors <= contributors)

    def rounds_max(self) -> float:
        """§2.1.5 rule 3"""
        step = self.inner.steps * self.unit * self.weight
        bounds = [b for b in (self.budget.rounds, -(-self.budget.tokens // step)) if b > 0]
        return min(bounds, default=math.inf)


def read_spec(data: bytes) -> tuple[RunSpec, bytes]:
    """A specification that is in its ranges (§2.1.3), and the name of its run."""
    spec = decode(RunSpec, data, 4096)
    for rule, holds in ranges(spec):
        demand(holds, "§2.1.3", f"{rule} is out of its range")
    return spec, digest("starling run v1", data)


def floats(value: Any) -> list[float]:
    """All floats within some fields."""
    if isinstance(value, tuple):
        return [x for part in value for x in floats(part)]
    return [value] if isinstance(value, float) else []


def ranges(spec: RunSpec) -> list[tuple[str, bool]]:
    """The rows of §2.1.3, and whether each holds. Rows that divide come after the rows that exclude zero."""
    m, i, outer, a = spec.model, spec.inner, spec.outer, spec.admission
    counts = [0, *(rate.contributors for rate in outer.lr)]
    plain = all(math.isfinite(x) and math.copysign(1, x) * (x == 0) >= 0 for x in floats(astuple(spec)))
    rows = [
        ("a float", plain),
        ("name", re.fullmatch(rb"[a-z0-9-]{1,64}", spec.name) is not None),
        ("vocab, d_model, ffn or seq_len",
         2 <= m.vocab <= 2**24 and 2 <= m.d_model <= 2**16 and 1 <= m.ffn <= 2**18 and 1 <= m.seq_len <= 2**20),
        ("layers or heads", 1 <= m.layers <= 1024 and 1 <= m.heads <= 1024),
        ("rope_theta or norm_eps", 1 <= m.rope_theta <= 1e12 and 0 < m.norm_eps <= 0.1),
        ("steps, batch or accumulate",
         1 <= i.steps <= 2**20 and 1 <= i.batch <= 2**16 and 1 <= i.accumulate <= 2**16 and i.steps * spec.unit <= 2**42),
        ("lr, lr_final or warmup_steps", 0 < i.lr <= 10 and 0 <= i.lr_final <= 1 and i.warmup_steps <= 2**30),
        ("beta1, beta2, eps, weight_decay or clip",
         0 <= i.beta1 < 1 and 0 <= i.beta2 < 1 and 0 < i.eps <= 1 and 0 <= i.weight_decay <= 10 and 0 <= i.clip <= 1e6),
        ("outer.lr", counts[1:2] == [1] and counts[-1] <= 1024 and all(x < y for x, y in zip(counts, counts[1:]))),
        ("a rate of outer.lr or the momentum", all(0 < r.rate <= 10 for r in outer.lr) and 0 <= outer.momentum < 1),
        ("grace_ms", 1000 <= spec.partition.grace_ms <= 86_400_000),
        ("allow", a.allow == tuple(sorted(set(a.allow))) and (len(a.allow) > 0) == (a.mode == LIST)),
        ("patience_ms or share", spec.join.patience_ms <= 3_600_000 and spec.join.share <= 50),
        ("probation", a.probation <= (4096 if a.mode == 1 else 0)),
        ("creator", a.mode != TICKET or spec.creator is not None),
        ("beginning", spec.beginning != ZERO),
        ("task", spec.task is None or fits_task(spec, spec.task)),
    ]
    if all(holds for _, holds in rows):
        fits = 1 <= m.kv_heads <= m.heads and m.heads % m.kv_heads == 0 and m.d_model % (2 * m.heads) == 0
        rows += [("kv_heads or d_model", fits), *sync_ranges(spec)]
    return rows


def fits_task(spec: RunSpec, task: Task) -> bool:
    """§2.8.7"""
    counts = 1 <= task.learned <= task.parameters <= 2**36 and task.samples <= 2**48 and task.weight >= 1
    lease = spec.sync.mode == ROUNDS and spec.inner.optimizer == ADAMW and spec.inner.steps * spec.unit <= 2**22
    named = task.schema != ZERO and spec.beginning is not None
    return counts and lease and named and (spec.model, spec.data.tokenizer) == OF_TASK


def fits_gap(spec: RunSpec) -> bool:
    s, most = spec.sync, spec.sync.gap_max
    bounded = spec.inner.steps <= most <= 2**20 and most * spec.unit <= 2**42
    plain = (s.mode, s.fragments, s.overlap, s.pairs, spec.task) == (ROUNDS, 1, 0, None, None) and s.codec.number != TOPK
    return bounded and plain and spec.outer.momentum <= 0.3


def sync_ranges(spec: RunSpec) -> list[tuple[str, bool]]:
    """The rows of §2.1.3 about averaging."""
    s, chunks = spec.sync, -(-spec.parameters // CHUNK)
    rows = [
        ("parameters", spec.parameters <= 2**36),
        ("engine", s.engine == 2 or s.codec.number not in (INT4, TOPK)),
        ("fragments", 1 <= s.fragments <= min(64, chunks)),
        ("overlap", s.overlap <= min(5, spec.inner.steps)),
        ("gap_max", s.gap_max == 0 or fits_gap(spec)),
        ("coarsest", s.coarsest is None or (s.gap_max > 0 and s.codec.number < s.coarsest.number <= INT4)),
        ("mixing", 0 <= s.mixing < 1 and (s.mixing == 0 or (s.overlap > 0 and s.fragments == 1))),
    ]
    if s.mode == EVERY_STEP:
        alone = (s.fragments, s.overlap, s.mixing, s.pairs) == (1, 0, 0, None)
        single = spec.outer == Outer((Rate(1, 1.0),), 0.0) and spec.inner.steps == 1 and spec.inner.optimizer == ADAMW
        rows.append(("what mode every-step fixes", alone and single))
    if s.codec.number == TOPK:
        rows.append(("the budget of top-k", spec.rounds_max() >= -(-20 * 4096 // s.codec.k) * s.fragments))
    if (p := s.pairs) is not None:
        alone = (s.engine, s.fragments, s.overlap, s.mixing) == (2, 1, 0, 0)
        rates = 0 <= p.alpha <= 0.6 and 0 < p.beta <= 2 and p.alpha < p.gamma <= 1.25
        rows.append(("gossip", alone and rates and 1 <= p.steps < spec.inner.steps))
    return rows
