"""Digests, signatures, and layouts as dataclasses (docs/protocol/1-wire.md §1.1 to §1.3).

A dataclass is a layout: its fields in their order, each with a type of §1.2.1. A tuple of types is a layout too.
`decode` reads the canonical form only, so two values are equal exactly if their encodings are.
"""

import functools
import struct
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

T = TypeVar("T")
ZERO = bytes(32)


class Fault(Exception):
    """A rule that does not hold: the section that states it, and the finding."""

    def __init__(self, section: str, found: str) -> None:
        super().__init__(f"{section}: {found}")
        self.section = section


def demand(holds: bool, section: str, otherwise: str) -> None:
    """Raises a fault unless the rule of this section holds."""
    if not holds:
        raise Fault(section, otherwise)


def keyed(context: str, *parts: bytes) -> blake3:
    """BLAKE3 in key-derivation mode over the concatenated parts."""
    hasher = blake3(derive_key_context=context)
    for part in parts:
        hasher.update(part)
    return hasher


def digest(domain: str, *parts: bytes) -> bytes:
    """H of §1.1: each part after its length."""
    return keyed(domain, *(piece for part in parts for piece in (u64(len(part)), part))).digest()


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


# The version of the protocol (§1.5.1).
VERSION = 9

# The y coordinates of the points of order 1, 2, 4 and 8.
P25519 = 2**255 - 19
SMALL_ORDER = {
    0,
    1,
    P25519 - 1,
    int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"),
    int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little"),
}


def is_small_order(encoded: bytes) -> bool:
    """Whether a point is one of the eight whose order divides 8."""
    return (int.from_bytes(encoded, "little") & (2**255 - 1)) % P25519 in SMALL_ORDER


def check_signature(signer: bytes, signature: bytes, signed: bytes) -> None:
    """Strict ed25519 of §1.1. The library refuses an S that is too large, and an R in another form."""
    weak = is_small_order(signer) or is_small_order(signature[:32])
    demand(not weak, "§1.1", "the key or the signature has a point of small order")
    try:
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, signed)
    except (InvalidSignature, ValueError) as wrong:
        raise Fault("§1.1", f"the signature of {signer.hex()[:8]} does not hold") from wrong


class OneOf(NamedTuple):
    """A number of an enumeration."""

    first: int
    last: int


class ListOf(NamedTuple):
    """A list with a largest number of entries."""

    of: Any
    limit: int


class BytesOf(NamedTuple):
    """A `bytes` or a `text` with a largest length."""

    limit: int


class Opt(NamedTuple):
    """An `opt`."""

    of: Any


class Rest(NamedTuple):
    """A value after its number at the end of a document; without the value nothing is there."""

    number: int
    of: Any


U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
F64 = Annotated[float, "d"]
Bool = Annotated[bool, OneOf(0, 1)]
B32 = Annotated[bytes, 32]
Sig = Annotated[bytes, 64]
MemberSet = Annotated[bytes, BytesOf(128)]


@functools.cache
def fields_of(layout: type) -> tuple[Any, ...]:
    """The types of a layout's fields."""
    return tuple(get_type_hints(layout, include_extras=True).values())


class Reader:
    """Reads one input from its start to its end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        demand(count <= len(self.data) - self.at, "§1.2", f"it ends within the {count} bytes from byte {self.at} on")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code: str) -> Any:
        """A number of a type that `struct` knows."""
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def count(self, limit: int) -> int:
        """A count that a limit bounds (§1.2.2 rule 2)."""
        count: int = self.number("Q")
        demand(count <= limit, "§1.2.2", f"a count of {count} at byte {self.at - 8}, where at most {limit} may be")
        return count

    def one_of(self, choice: OneOf) -> int:
        """A number of an enumeration (§1.2.2 rule 3)."""
        number: int = self.number("B")
        fits = choice.first <= number <= choice.last
        demand(fits, "§1.2.2", f"{number} at byte {self.at - 1}, where only {choice.first} to {choice.last} are known")
        return number

    def read(self, kind: Any) -> Any:
        """A value of this type."""
        if isinstance(kind, tuple):
            return tuple(map(self.read, kind))
        if isinstance(kind, type) and is_dataclass(kind):
            return kind.read_from(self) if hasattr(kind, "read_from") else kind(*map(self.read, fields_of(kind)))
        match kind.__metadata__[0]:
            case str() as code:
                return self.number(code)
            case int() as count:
                return self.take(count)
            case OneOf() as choice:
                return self.one_of(choice)
            case ListOf(of, limit):
                return tuple(self.read(of) for _ in range(self.count(limit)))
            case BytesOf(limit):
                return self.take(self.count(limit))
            case Opt(of):
                return self.read(of) if self.one_of(OneOf(0, 1)) else None
            case Rest(number, of):
                if self.at == len(self.data):
                    return None
                self.one_of(OneOf(number, number))
                return self.read(of)
        raise TypeError(f"{kind} is no type of §1.2.1")


def decode(layout: type[T] | tuple[Any, ...], data: bytes, limit: int) -> T:
    """One document or message, from its first byte to its last (§1.2.2)."""
    demand(len(data) <= limit, "§1.2.2", f"{len(data)} bytes, where at most {limit} may be")
    reader = Reader(data)
    value: T = reader.read(layout)
    demand(reader.at == len(data), "§1.2.2", f"{len(data) - reader.at} bytes after the end")
    return value


@dataclass(frozen=True)
class Envelope:
    """A signed message (§1.5.1)."""

    version: U16
    sender: B32
    body: bytes
    signature: Sig

    @classmethod
    def read_from(cls, reader: Reader) -> "Envelope":
        version, sender = reader.number("H"), reader.take(32)
        return cls(version, sender, reader.take(reader.number("I")), reader.take(64))


def open_envelope(data: bytes, run: bytes, tag: int, message: type[T] | tuple[Any, ...], limit: int) -> tuple[bytes, T]:
    """The sender and the message of an envelope with a valid signature in this run (§1.5.1)."""
    envelope = decode(Envelope, data, limit)
    demand(envelope.version == VERSION, "§1.5.1", f"version {envelope.version}")
    check_signature(envelope.sender, envelope.signature, b"starling control v1" + run + envelope.sender + envelope.body)
    demand(envelope.body[:2] == struct.pack("<H", tag), "§1.5.2", f"the message's tag is not {tag}")
    return envelope.sender, decode(message, envelope.body[2:], limit)


def members_of(members: bytes) -> list[int]:
    """The places that a set of members names (§1.2.3)."""
    demand(not members or members[-1] != 0, "§1.2.3", "a set of members ends with a zero")
    return [i for i in range(8 * len(members)) if members[i // 8] >> i % 8 & 1]
