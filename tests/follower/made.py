"""Records and certificates that this file makes, with keys of its own, for cases that recorded runs seldom or never
have: SKIPs, FORKs under other incarnations, and certificates that prove nothing."""

import struct
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from records import GENESIS, LEARNER, VOTER, Link, Member, Record, Span, audit, check_after, fork_of, read_record, skip_of
from specification import Codec, RunSpec, read_spec
from votes import (FORK_TAG, ON_THE_RECORD, SET_VALUE, SKIP_VALUE, VOTE_TAG, Certificate, Fork, Question, Value, Vote,
                   check_certificate, is_quorum)
from wire import VERSION, ZERO, BytesOf, Fault, ListOf, OneOf, Opt, demand, fields_of, u32, u64


def encode(kind: Any, value: Any) -> bytes:
    """A value of a type of §1.2.1."""
    if kind is Codec:
        return bytes([value.number]) + (struct.pack("<H", value.k) if value.k else b"")
    if isinstance(kind, type) and is_dataclass(kind):
        types = zip(fields_of(kind), fields(kind))
        return b"".join(encode(field_type, getattr(value, field.name)) for field_type, field in types)
    match kind.__metadata__[0]:
        case str() as code:
            return struct.pack("<" + code, value)
        case OneOf():
            return bytes([value])
        case ListOf(of, _):
            return u64(len(value)) + b"".join(encode(of, entry) for entry in value)
        case BytesOf():
            return u64(len(value)) + bytes(value)
        case Opt(of):
            return b"\0" if value is None else b"\1" + encode(of, value)
    return bytes(value)


@dataclass(frozen=True)
class World:
    """A run, three voters and a learner under incarnations 7 to 10, and a record that lists them."""

    spec: RunSpec
    keys: tuple[Ed25519PrivateKey, ...]
    parent: Link

    def sign(self, place: int, tag: int, kind: Any, message: Any) -> bytes:
        """The envelope of a message of the member at a place."""
        key, body = self.keys[place], struct.pack("<H", tag) + encode(kind, message)
        sender = key.public_key().public_bytes_raw()
        signature = key.sign(b"starling control v1" + self.parent.record.run + sender + body)
        return struct.pack("<H", VERSION) + sender + u32(len(body)) + body + signature

    def vote(self, place: int, link: Link, **other: Any) -> bytes:
        """A vote for a SKIP, except for the fields in `other`."""
        question = Question(link.record.seq, self.parent.digest, ON_THE_RECORD)
        value = Value(other.pop("kind", SKIP_VALUE), link.digest, 0, 0, 0, ZERO, b"")
        return self.sign(place, VOTE_TAG, Vote, replace(Vote(question, 7 + place, 2, value, True), **other))

    def fork(self, place: int, link: Link, members: bytes, incarnation: int) -> bytes:
        """A Fork for a record."""
        p = self.parent
        message = Fork(p.record.lineage, link.record.seq, p.digest, incarnation, link.digest, members)
        return self.sign(place, FORK_TAG, Fork, message)

    def verdict(self, link: Link, votes: list[bytes]) -> str:
        """The section that refuses the votes, or nothing."""
        r = link.record
        certificate = Certificate(r.lineage, r.seq, link.digest, tuple(votes))
        try:
            check_after(self.parent, r)
            audit(self.parent.record, r)
            check_certificate(self.spec, self.parent, link, encode(Certificate, certificate))
        except Fault as fault:
            return str(fault).split(":")[0]
        return ""


def world_of(vectors: Path) -> World:
    """The world of the specification and the record of wire.txt."""
    lines = (line.split() for line in vectors.read_text().splitlines() if not line.startswith("#"))
    v = {name: bytes.fromhex(text) for name, text in lines}
    spec, run = read_spec(v["spec"])
    # Fixed seeds: ed25519 signs without randomness.
    pairs = sorted((Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in range(1, 5)),
                   key=lambda key: key.public_key().public_bytes_raw())
    ids = [key.public_key().public_bytes_raw() for key in pairs]
    roles = (VOTER, VOTER, VOTER, LEARNER)
    members = tuple(Member(ids[n], 7 + n, roles[n], 0, True, Span(100 * n, 100), 5, 0, 0, 0) for n in range(4))
    old = read_record(v["record"])
    demand(encode(Record, old.record) == v["record"], "§1.2.2", "a record has another encoding")
    following = replace(old.record.next, overhead_1=0, overhead_2=0, overhead_3=0, merge_tokens=0, merge_norm=0,
                        members=members, ring=())
    genesis = replace(old.record, run=run, seq=0, parent=ZERO, kind=GENESIS, round=0, contributors=(), update=ZERO, tokens=0,
                      steps=0, cursor=400, free=(), merged=(), next=following)
    return World(spec, tuple(pairs), read_record(encode(Record, genesis)))


def check_halves(parent: Link) -> None:
    """Checks that two of four voters are a quorum only with the senior one of those that were there last (§4.1)."""
    members = [replace(m, role=VOTER, absent=int(n == 0), since=(0, 9, 4, 9)[n])
               for n, m in enumerate(parent.record.next.members)]
    four = Link(replace(parent.record, next=replace(parent.record.next, members=tuple(members))), parent.digest)
    pairs = [{a.id, b.id} for a, b in combinations(members, 2) if is_quorum(four, {a.id, b.id})]
    shared = set.intersection(*pairs) if pairs else set()
    holds = len(pairs) == 3 and shared == {members[2].id}
    demand(holds, "§4.1", "halves of four voters that are no quorum, or should be none")


def check_made(vectors: Path) -> int:
    """Checks that each certificate is accepted or refused as its section says; returns their number."""
    w = world_of(vectors)
    check_halves(w.parent)
    skip = read_record(encode(Record, skip_of(w.parent)))
    other = read_record(encode(Record, replace(skip.record, revoked=(bytes([7]) * 32,))))
    fork = read_record(encode(Record, fork_of(w.parent, w.spec, {w.parent.record.next.members[1].id: 8,
                                                                w.parent.record.next.members[3].id: 99})))
    both = b"\x0a"
    cases = [
        ("", skip, [w.vote(0, skip), w.vote(1, skip), w.vote(2, skip)]),
        ("", skip, [w.vote(0, skip), w.vote(2, skip)]),
        ("§4.8.1 rule 5", skip, [w.vote(0, skip)]),
        ("§4.8.1 rule 5", skip, [w.vote(2, skip), w.vote(0, skip)]),
        ("§4.8.1 rule 5", skip, [w.vote(0, skip), w.vote(0, skip)]),
        ("§4.8.1 rule 5", skip, [w.vote(0, skip), w.vote(1, skip), w.vote(3, skip)]),
        ("§4.8.1 rule 5", skip, [w.vote(0, skip), w.vote(1, skip, incarnation=9)]),
        ("§4.8.1 rule 4", skip, [w.vote(0, skip), w.vote(1, skip, ballot=3)]),
        ("§4.8.1 rule 4", skip, [w.vote(n, skip, question=Question(1, w.parent.digest, 1)) for n in range(2)]),
        ("§4.8.1 rule 3", skip, [w.vote(0, skip), w.vote(1, skip, voted=False)]),
        ("§4.8.1 rule 3", skip, [w.vote(0, skip), w.vote(1, skip, kind=SET_VALUE)]),
        ("§4.8.1 rule 3", skip, [w.vote(0, skip), w.vote(1, other)]),
        ("§4.8.1 rule 2", other, [w.vote(0, other), w.vote(1, other)]),
        ("", fork, [w.fork(1, fork, both, 8), w.fork(3, fork, both, 99)]),
        ("§4.8.2 rule 4", fork, [w.fork(1, fork, both, 8)]),
        ("§4.8.2 rule 3", fork, [w.fork(1, fork, both, 8), w.fork(3, fork, b"\x0e", 99)]),
        ("§4.8.2 rule 2", fork, [w.fork(1, fork, both, 8), w.fork(3, fork, both, 10)]),
        ("§1.2.3", fork, [w.fork(1, fork, both + b"\0", 8), w.fork(3, fork, both + b"\0", 99)]),
    ]
    for number, (expected, link, votes) in enumerate(cases):
        verdict = w.verdict(link, votes)
        demand(verdict == expected, expected or "§4.8", f"made certificate {number}: {verdict or 'it is taken'}")
    return len(cases)
