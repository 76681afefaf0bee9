"""Codecs and the update D (docs/protocol/3-reduction.md §3.1 and §3.2). A payload that is not canonical is a fault."""

import numpy as np
from numpy.typing import NDArray

from specification import BF16, CHUNK, INT4, INT8, Codec
from wire import demand

Floats = NDArray[np.float32]
TOPK_BLOCK = 4096
# Bits of the smallest and the largest scale or level, 2^-100 and 2^120, as bf16.
LEAST, MOST = (127 - 100) << 7, (127 + 120) << 7


def widen(halves: NDArray[np.uint16]) -> Floats:
    """bf16 as f32."""
    return (halves.astype("<u4") << 16).view("<f4")


def decode_payload(codec: Codec, elements: int, payload: bytes) -> Floats:
    """The elements of one chunk."""
    if codec.number == BF16:
        demand(len(payload) == 2 * elements, "§3.1.1", "the payload has another length")
        values = widen(np.frombuffer(payload, "<u2"))
        demand(bool(np.isfinite(values).all()), "§3.1.1", "an element is not finite")
        return values
    if codec.number in (INT8, INT4):
        return decode_scaled(codec.number, elements, payload)
    blocks, at = [], 0
    for start in range(0, elements, TOPK_BLOCK):
        values, length = decode_topk(codec.k, min(TOPK_BLOCK, elements - start), payload[at:])
        blocks.append(values)
        at += length
    demand(at == len(payload), "§3.1.4", "bytes after the last block")
    return np.concatenate([np.zeros(0, "<f4"), *blocks])


def decode_scaled(number: int, elements: int, payload: bytes) -> Floats:
    """int8 (§3.1.2) and int4 (§3.1.3)."""
    section, block, lowest = ("§3.1.2", 256, -128) if number == INT8 else ("§3.1.3", 64, -8)
    blocks = -(-elements // block)
    length = elements if number == INT8 else -(-elements // 2)
    demand(len(payload) == 2 * blocks + length, section, "the payload has another length")
    scales, body = np.frombuffer(payload[: 2 * blocks], "<u2"), payload[2 * blocks :]
    lawful = (scales == 0) | ((scales >= LEAST) & (scales <= MOST))
    demand(bool(lawful.all()), section, "a scale is out of its range")
    q = np.frombuffer(body, "i1") if number == INT8 else nibbles(elements, block, body)
    demand(not (q == lowest).any(), section, f"a value of {lowest}")
    used = np.add.reduceat(q != 0, np.arange(0, elements, block), dtype=np.int64) > 0 if blocks else scales > 0
    demand(bool((used == (scales > 0)).all()), section, "a scale is 0 and its values are not, or the reverse")
    return q.astype("<f4") * np.repeat(widen(scales), block)[:elements]


def nibbles(elements: int, block: int, body: bytes) -> NDArray[np.int8]:
    """The values of int4 in their order; the values of a block's first half are in low nibbles."""
    packed = np.frombuffer(body, "u1")
    halves = np.stack([packed & 15, packed >> 4]).astype("i1")
    halves[halves > 7] -= 16
    whole = elements // block * block
    values = [halves[:, : whole // 2].reshape(2, -1, block // 2).transpose(1, 0, 2).ravel(), halves[:, whole // 2 :].ravel()]
    q = np.concatenate(values)
    demand(not q[elements:].any(), "§3.1.3", "a nibble without a value is not 0")
    return q[:elements]


class Bits:
    """Bits of a block, the lowest of a byte first."""

    def __init__(self, data: bytes) -> None:
        self.bits, self.at = np.unpackbits(np.frombuffer(data, "u1"), bitorder="little").tobytes(), 0

    def take(self, count: int) -> int:
        """A number of `count` bits, lowest first."""
        taken = self.bits[self.at : self.at + count]
        demand(len(taken) == count, "§3.1.4", "a block ends within an entry")
        self.at += count
        return sum(bit << place for place, bit in enumerate(taken))

    def ones(self) -> int:
        """The number of ones before the next zero."""
        zero = self.bits.find(0, self.at)
        demand(zero >= 0, "§3.1.4", "a block ends within an entry")
        count = zero - self.at
        self.at = zero + 1
        return count


def decode_topk(k: int, elements: int, data: bytes) -> tuple[Floats, int]:
    """A block of top-k, and its number of bytes in `data` (§3.1.4)."""
    values = np.zeros(elements, "<f4")
    demand(len(data) >= 2, "§3.1.4", "the payload ends before its last block")
    entries = int.from_bytes(data[:2], "little")
    demand(entries <= -(-k * elements // TOPK_BLOCK), "§3.1.4", f"{entries} entries in a block")
    if entries == 0:
        return values, 2
    demand(len(data) >= 6, "§3.1.4", "the payload ends within a block's levels")
    levels = np.frombuffer(data[2:6], "<u2")
    lawful = all(LEAST <= level <= MOST for level in levels) and levels[0] <= levels[1]
    demand(lawful, "§3.1.4", "the levels are out of their range or do not ascend")
    r = max((elements // entries).bit_length() - 2, 0)
    # No entry takes more than these bits.
    bits = Bits(data[6 : 6 + -(-entries * (elements + r + 3) // 8)])
    place, seen = -1, set()
    for _ in range(entries):
        place += 1 + (bits.ones() << r) + bits.take(r)
        demand(place < elements, "§3.1.4", "an entry is outside of its block")
        negative, high = bits.take(1), bits.take(1)
        values[place] = widen(levels)[high] * (-1 if negative else 1)
        seen.add(high)
    demand(seen == ({0, 1} if levels[0] < levels[1] else {0}), "§3.1.4", "a level has no entries")
    demand(bits.take(-bits.at % 8) == 0, "§3.1.4", "the last byte is not filled with 0")
    return values, 6 + bits.at // 8


def payload_max(codec: Codec, elements: int) -> int:
    """§3.1.5"""
    match codec.number:
        case 1:
            return 2 * elements
        case 2:
            return elements + 2 * -(-elements // 256)
        case 3:
            return -(-elements // 2) + 2 * -(-elements // 64)
    total = 0
    for start in range(0, elements, TOPK_BLOCK):
        m = min(TOPK_BLOCK, elements - start)
        c = -(-codec.k * m // TOPK_BLOCK)
        r = max((m // c).bit_length() - 2, 0)
        total += 6 + -(-c * (8 + r) // 8)
    return total


def decode_update(codec: Codec, elements: int, update: bytes) -> Floats:
    """The elements of D (§3.2)."""
    sizes = [min(CHUNK, elements - start) for start in range(0, elements, CHUNK)]
    lengths, at = [payload_max(codec, size) for size in sizes], 0
    if codec.number not in (BF16, INT8, INT4):
        at = 4 * len(sizes)
        demand(len(update) >= at, "§3.2", "D ends within its table")
        told = [int(length) for length in np.frombuffer(update[:at], "<u4")]
        demand(all(x <= most for x, most in zip(told, lengths)), "§3.2", "a payload is longer than its codec allows")
        lengths = told
    demand(len(update) == at + sum(lengths), "§3.2", "D does not end with its last payload")
    parts = []
    for size, length in zip(sizes, lengths):
        parts.append(decode_payload(codec, size, update[at : at + length]))
        at += length
    return np.concatenate(parts)
