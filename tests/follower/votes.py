"""Quorums and certificates (docs/protocol/4-agreement.md §4.1 and §4.8)."""

from dataclasses import dataclass
from typing import Annotated

from records import FORK, SKIP, Link, fork_of, skip_of
from specification import RunSpec
from wire import (B32, U32, U64, ZERO, Bool, BytesOf, ListOf, MemberSet, OneOf, decode, demand, members_of,
                  open_envelope)

VOTE_TAG, FORK_TAG = 9, 12
VOTE_BYTES_MAX = 352
ON_THE_RECORD = 2**32 - 1
COMMIT_VALUE, SKIP_VALUE, SET_VALUE = 1, 2, 3


@dataclass(frozen=True)
class Question:
    """§1.5.8"""

    seq: U64
    parent: B32
    instance: U32


@dataclass(frozen=True)
class Value:
    """§1.5.8"""

    kind: Annotated[int, OneOf(COMMIT_VALUE, SET_VALUE)]
    digest: B32
    tokens: U64
    contributors: U32
    attempt: U32
    set: B32
    members: MemberSet


@dataclass(frozen=True)
class Vote:
    """§1.5.10"""

    question: Question
    incarnation: U64
    ballot: U32
    value: Value
    voted: Bool


@dataclass(frozen=True)
class Fork:
    """§1.5.13"""

    lineage: B32
    seq: U64
    parent: B32
    incarnation: U64
    record: B32
    members: MemberSet


@dataclass(frozen=True)
class Certificate:
    """§1.5.11"""

    lineage: B32
    seq: U64
    record: B32
    votes: Annotated[tuple[bytes, ...], ListOf(Annotated[bytes, BytesOf(VOTE_BYTES_MAX)], 31)]


def check_certificate(spec: RunSpec, parent: Link, link: Link, data: bytes) -> int:
    """Checks that these votes decided the record after its trusted parent (§4.8); returns their number."""
    certificate = decode(Certificate, data, 16_384)
    r = link.record
    named = (certificate.lineage, certificate.seq, certificate.record)
    demand(named == (r.lineage, r.seq, link.digest), "§4.8.1 rule 1", "the certificate is for another record")
    if r.kind == FORK:
        check_forks(spec, parent, link, certificate)
    else:
        demand(r.kind != SKIP or r == skip_of(parent), "§4.8.1 rule 2", "it is not the SKIP that follows its parent (§2.6)")
        check_votes(parent, link, certificate)
    return len(certificate.votes)


def check_votes(parent: Link, link: Link, certificate: Certificate) -> None:
    """§4.8.1 rules 3 to 5"""
    record = link.record
    votes = [open_envelope(data, record.run, VOTE_TAG, Vote, VOTE_BYTES_MAX) for data in certificate.votes]
    question = Question(record.seq, parent.digest, ON_THE_RECORD)
    for _, vote in votes:
        demand(vote.voted and is_value_of(vote.value, link), "§4.8.1 rule 3", "a vote that is not for this record")
        demand(vote.question == question, "§4.8.1 rule 4", "a vote on another question")
        demand(vote.ballot == votes[0][1].ballot, "§4.8.1 rule 4", "votes of two ballots")
    senders = [sender for sender, _ in votes]
    demand(senders == sorted(set(senders)), "§4.8.1 rule 5", "the senders do not ascend")
    voters = {m.id: m.incarnation for m in parent.record.voters}
    seated = all(voters.get(sender) == vote.incarnation for sender, vote in votes)
    demand(seated, "§4.8.1 rule 5", "a vote of somebody that is no voter of the parent under this incarnation")
    demand(is_quorum(parent, set(senders)), "§4.8.1 rule 5", f"{len(senders)} votes are no quorum of {len(voters)} voters")


def is_value_of(value: Value, link: Link) -> bool:
    """Whether a value is not a set, has the form of §1.5.8, and names the record."""
    if value.kind == COMMIT_VALUE:
        form = value.tokens > 0 and value.contributors > 0 and value.set != ZERO and value.members == b""
    else:
        zeros = (value.tokens, value.contributors, value.attempt, value.set, value.members)
        form = value.kind == SKIP_VALUE and zeros == (0, 0, 0, ZERO, b"")
    return form and value.digest == link.digest


def is_quorum(parent: Link, senders: set[bytes]) -> bool:
    """§4.1"""
    voters = parent.record.voters
    heard = sum(m.id in senders for m in voters)
    distinguished = min(voters, key=lambda m: (m.absent, m.since, m.id))
    return 2 * heard > len(voters) or (2 * heard == len(voters) and distinguished.id in senders)


def check_forks(spec: RunSpec, parent: Link, link: Link, certificate: Certificate) -> None:
    """§4.8.2"""
    record, p = link.record, parent.record
    forks = [open_envelope(data, record.run, FORK_TAG, Fork, VOTE_BYTES_MAX) for data in certificate.votes]
    demand(len(forks) > 0, "§4.8.2 rule 4", "nobody signed it")
    for _, fork in forks:
        named = (fork.lineage, fork.seq, fork.parent, fork.record)
        demand(named == (p.lineage, record.seq, parent.digest, link.digest), "§4.8.2 rule 3", "a Fork of another record")
        demand(fork.members == forks[0][1].members, "§4.8.2 rule 3", "Forks of two sets of members")
    places, members = members_of(forks[0][1].members), p.next.members
    named_ids = [members[place].id if place < len(members) else ZERO for place in places]
    demand([sender for sender, _ in forks] == named_ids, "§4.8.2 rule 4", "the senders are not the members named")
    rebuilt = fork_of(parent, spec, {sender: fork.incarnation for sender, fork in forks})
    demand(record == rebuilt, "§4.8.2 rule 2", "it is not the FORK that follows from its parent and its signers (§2.7)")
