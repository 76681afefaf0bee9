"""Reads the vectors of `protocol/vectors` by the specification: each document of wire.txt, each payload of codec.txt."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from amendments import Amendment, Settings, check_form
from payloads import Floats, decode_payload, widen
from records import COMMIT, Measured, Record, read_record
from specification import BF16, INT4, INT8, TOPK, Codec, read_spec
from votes import Certificate, Fork, Question, Value, Vote
from wire import (B32, U16, U32, U64, Bool, BytesOf, Fault, ListOf, OneOf, Opt, Sig, check_signature,
                  decode, demand, digest, open_envelope, u32, u64)

CONTROL_BYTES_MAX = 16_384

# Layouts that a verifier of a recorded run does not read, as the types of their fields.
HEAD_REF = (B32, U64, B32)
READY = Annotated[bytes, BytesOf(1472)]
STATEMENT = (Annotated[int, OneOf(1, 3)], B32, U64, B32)
STAMP = (U64, U32, U32, Annotated[int, OneOf(0, 2)])
MESSAGES: dict[str, tuple[int, Any]] = {
    "hello": (1, (U16, Annotated[bytes, BytesOf(4096)], U64, U64)),
    "head": (2, (HEAD_REF, U64, Annotated[int, OneOf(1, 10)], U64,
                 Annotated[Any, Opt((Annotated[int, OneOf(1, 4)], B32))], U64, U64, U64, Annotated[bytes, BytesOf(128)])),
    "join": (3, (HEAD_REF, B32, U64, Annotated[bytes, BytesOf(256)])),
    "ready": (4, (B32, U64, B32, B32, U64, U64, U64, U64, U32, U32, B32, Measured, Annotated[Any, ListOf(STATEMENT, 8)],
                  Bool, Annotated[Any, Opt(B32)], U64, Annotated[Any, ListOf((U16, U16), 64)],
                  Annotated[Any, Opt(Amendment)])),
    "leave": (7, (B32, U64)),
    "estimate": (8, (Question, U64, U32, Value)),
    "vote": (9, Vote),
    "certificate": (10, Certificate),
    "witness": (11, (U64, STAMP)),
    "fork": (12, Fork),
    "start": (13, (Question, Value)),
    "evidence": (14, (READY, READY)),
    "alive": (15, (U64, U64)),
    "amend": (16, Amendment),
}
CANDIDATE = (B32, U64, U32, B32, Record, Annotated[Any, ListOf(READY, 1024)])
VOTE_STATE = (U64, B32, B32, STAMP, Annotated[Any, Opt((U32, Value))], Annotated[Any, Opt((U32, Value, Bool))])


@dataclass(frozen=True)
class Ticket:
    """§5.1.2"""

    nonce: U64
    holder: Annotated[bytes | None, Opt(B32)]
    expires: U64
    uses: U32
    signature: Sig


@dataclass(frozen=True)
class Revocation:
    """§5.1.3"""

    kind: Annotated[int, OneOf(1, 2)]
    subject: B32
    signature: Sig


@dataclass(frozen=True)
class TaskTensor:
    """§2.8.7"""

    name: Annotated[bytes, BytesOf(255)]
    kind: Annotated[int, OneOf(1, 2)]
    dtype: Annotated[int, OneOf(1, 4)]
    shape: Annotated[tuple[int, ...], ListOf(U32, 8)]


def read_schema(data: bytes) -> tuple[int, int]:
    """The elements of a task's document, and of those the learned ones (§2.8.7)."""
    tensors: tuple[TaskTensor, ...] = decode((Annotated[Any, ListOf(TaskTensor, 16_384)],), data, 1 << 20)[0]
    kinds, names = [tensor.kind for tensor in tensors], {tensor.name for tensor in tensors}
    plain = all(0x21 <= byte <= 0x7E for name in names for byte in name) and all(names)
    demand(kinds[:1] == [1] and kinds == sorted(kinds) and len(names) == len(tensors) and plain, "§2.8.7", "no schema")
    sizes = [math.prod(tensor.shape) for tensor in tensors]
    return sum(sizes), sum(size for size, kind in zip(sizes, kinds) if kind == 1)


def check_wire(path: Path) -> int:
    """Decodes every document, and compares every digest and signature; returns the number of lines that hold."""
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    v = {name: bytes.fromhex(text) for name, text in lines}
    spec, run = read_spec(v["spec"])
    read_spec(v["spec-with-pairs"])
    read_spec(v["spec-with-a-choice"])
    demand(read_spec(v["spec-from-weights"])[0].beginning == bytes([0xB1]) * 32, "§2.1.1", "the beginning is another")
    task = read_spec(v["spec-with-task"])[0].task
    schema = digest("starling task schema v1", v["task-schema"])
    elements, learned = read_schema(v["task-schema"])
    demand(task is not None and (schema, elements, learned) == (task.schema, task.parameters, task.learned), "§2.8.7",
           "the schema is not the task's")
    demand(v["task-schema-digest"] == schema, "§1.1.1", "the schema's digest is another")
    record, fork = read_record(v["record"]), read_record(v["fork-record"])
    names = b"".join(member.id + u64(member.incarnation) for member in fork.record.next.members)
    lineage = digest("starling fork v1", record.record.lineage, record.digest, names)
    ticket, revocation = decode(Ticket, v["ticket"], 256), decode(Revocation, v["revocation"], 256)
    # The tickets of the sample are of a run whose name is ones.
    ones = bytes([1]) * 32
    terms = (ones, u64(ticket.nonce), ticket.holder or b"", u64(ticket.expires), u32(ticket.uses))
    creator = spec.creator or b""
    check_signature(creator, ticket.signature, digest("starling ticket v1", *terms))
    revoked = digest("starling revocation v1", ones, bytes([revocation.kind]), revocation.subject)
    check_signature(creator, revocation.signature, revoked)
    amendment, amended = decode(Amendment, v["amendment"], 192), read_record(v["amended-record"]).record
    check_form(amendment)
    check_signature(creator, amendment.signature or b"", amendment.name(ones))
    after = Settings(1, amendment.name(amended.run), amendment.changes)
    demand((amended.amended, amended.next.settings) == (amendment, after), "§2.2.1", "the amended record is another")
    told = {"spec-digest": run, "record-digest": record.digest, "fork-lineage": lineage,
            "ticket-grant": digest("starling grant v1", *terms), "amendment-name": amendment.name(ones),
            "envelope-ready-digest": digest("starling envelope v1", v["envelope-ready"])}
    for name, expected in told.items():
        demand(v[name] == expected, "§1.1.1", f"{name} is another")
    demand(fork.record.lineage == lineage and record.record.kind == COMMIT, "§2.7", "the lineage of the FORK is another")
    decode(Certificate, v["certificate"], CONTROL_BYTES_MAX)
    decode(VOTE_STATE, v["vote_state"], CONTROL_BYTES_MAX)
    decode(CANDIDATE, v["candidate"], 1_777_920)
    for name, (tag, message) in MESSAGES.items():
        open_envelope(v[f"envelope-{name}"], run, tag, message, CONTROL_BYTES_MAX)
    return len(v)


def check_codec(path: Path) -> int:
    """Decodes every payload or refuses it, and encodes the floats; returns the number of lines that hold."""
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    for what, name, given, payload, *_ in lines:
        codec = Codec(*CODECS[name]) if name in CODECS else Codec(TOPK, int(name.removeprefix("top-")))
        CHECKS[what](codec, given, payload)
    return len(lines)


def unhex(text: str) -> bytes:
    return b"" if text == "-" else bytes.fromhex(text)


def refuse_decode(codec: Codec, elements: str, payload: str) -> None:
    """Checks that a payload is refused."""
    try:
        decode_payload(codec, int(elements), unhex(payload))
    except Fault:
        return
    raise Fault("§3.1", f"a payload was taken that is to be refused: {payload}")


def refuse_encode(codec: Codec, given: str, _reason: str) -> None:
    """Checks that floats cannot be encoded."""
    demand(encode(codec, np.frombuffer(unhex(given), "<f4")) is None, "§3.1", f"floats were encoded that cannot be: {given}")


def both_ways(codec: Codec, given: str, payload: str) -> None:
    """Checks floats and their payload. A top-k encoder chooses the kept values: each has the sign of its float."""
    floats = np.frombuffer(unhex(given), "<f4")
    decoded = decode_payload(codec, len(floats), unhex(payload))
    if codec.number == TOPK:
        kept = decoded != 0
        demand(bool((np.sign(decoded[kept]) == np.sign(floats[kept])).all()), "§3.1.4", f"another payload: {payload}")
    else:
        demand(encode(codec, floats) == unhex(payload), "§3.1", f"{given} has another payload than {payload}")


def encode(codec: Codec, floats: Floats) -> bytes | None:
    """The payload by §3.1.1 to §3.1.3; None if the floats have none."""
    if not np.isfinite(floats).all():
        return None
    if codec.number == TOPK:
        # An encoder chooses the kept values, so this payload is not checked here.
        return b"" if np.abs(floats).max() <= 2.0**120 else None
    bits = floats.view("<u4").astype("<u8")
    if codec.number == BF16:
        halves = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return halves.astype("<u2").tobytes() if not (halves & 0x7FFF == 0x7F80).any() else None
    block, most = (256, 127) if codec.number == INT8 else (64, 7)
    encoded = [encode_block(floats[at : at + block], most) for at in range(0, len(floats), block)]
    whole = [part for part in encoded if part is not None]
    return b"".join([*(scale for scale, _ in whole), *(q for _, q in whole)]) if len(whole) == len(encoded) else None


def encode_block(x: Floats, most: int) -> tuple[bytes, bytes] | None:
    """Scale and values of a block, as §3.1.2 and §3.1.3 say."""
    largest = np.abs(x).max()
    if largest > most * 2.0**120:
        return None
    exact = np.array([largest / np.float32(most)], "<f4").view("<u4")
    scale = ((exact >> 16) + (exact & 0xFFFF != 0)).astype("<u2")
    s = widen(scale)[0]
    if s < 2.0**-100:
        scale, q = np.zeros(1, "<u2"), np.zeros(len(x), "i1")
    else:
        q = np.rint(x / s).astype("i1")
    if most == 127:
        return scale.tobytes(), q.tobytes()
    half = -(-len(x) // 2)
    low, high = q[:half].view("u1") & 15, np.zeros(half, "u1")
    high[: len(x) - half] = q[half:].view("u1") & 15
    return scale.tobytes(), (low | high << 4).tobytes()


CODECS = {"bf16": (BF16, 0), "int8": (INT8, 0), "int4": (INT4, 0)}
CHECKS = {"encode": both_ways, "refuse-encode": refuse_encode, "refuse-decode": refuse_decode}
