"""Writes codec.txt: test vectors of the bf16 and int8 codecs, by plain Python arithmetic.

A second statement of the rules at the head of src/codec/mod.rs, in another language. Doubles divide and round
to f32 as f32 division does (53 >= 2 * 24 + 2 bits), and Python's round() takes ties to even.

    python3 codec.py > codec.txt
"""

import random
import struct

BLOCK = 256


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def from_bits(b):
    return struct.unpack("<f", struct.pack("<I", b))[0]


def f32(x):
    return from_bits(bits(x))


def widen(b):
    return from_bits(b << 16)


def bf16_nearest(x):
    b = bits(x)
    low, high = b & 0xFFFF, b >> 16
    return high + (low > 0x8000 or (low == 0x8000 and high & 1 == 1))


def encode_bf16(xs):
    return b"".join(struct.pack("<H", bf16_nearest(x)) for x in xs)


def encode_int8(xs):
    scales, values = b"", b""
    for start in range(0, len(xs), BLOCK):
        block = xs[start : start + BLOCK]
        t = f32(max(abs(x) for x in block) / 127.0)
        s = (bits(t) >> 16) + (bits(t) & 0xFFFF != 0)
        if widen(s) < 2.0**-100:
            s = 0
        scales += struct.pack("<H", s)
        values += struct.pack(f"<{len(block)}b", *(round(f32(x / widen(s))) if s else 0 for x in block))
    return scales + values


def floats(xs):
    return b"".join(struct.pack("<f", x) for x in xs).hex() or "-"


def accept(codec, xs):
    xs = [f32(x) for x in xs]
    payload = {"bf16": encode_bf16, "int8": encode_int8}[codec](xs)
    print("encode", codec, floats(xs), payload.hex() or "-")


def refuse_encode(codec, xs, reason):
    print("refuse-encode", codec, floats(xs), reason)


def refuse_decode(codec, elements, payload, reason):
    print("refuse-decode", codec, elements, payload.hex() or "-", reason)


def main():
    rng = random.Random(20261120)
    print("# Made by codec.py. Numbers are little-endian hex, '-' is nothing.")
    print("# encode CODEC FLOATS PAYLOAD | refuse-encode CODEC FLOATS REASON | refuse-decode CODEC ELEMENTS PAYLOAD REASON")
    edges = [0.0, -0.0, 1.0, -1.0, from_bits(0x3F808000), from_bits(0x3F818000), from_bits(0x3F808001),
             from_bits(0x3FFFFFFF), from_bits(1), from_bits(0x8001), from_bits(0x7F7F7FFF), -from_bits(0x7F7F7FFF)]
    accept("bf16", [])
    accept("bf16", edges)
    accept("bf16", [rng.gauss(0, 1) for _ in range(40)])
    for bad, reason in [(float("inf"), "not_finite"), (float("nan"), "not_finite"), (from_bits(0x7F7F8000), "too_large")]:
        refuse_encode("bf16", [1.0, bad], reason)
    for b in [0x7F80, 0xFF80, 0x7FC0, 0xFFFF]:
        refuse_decode("bf16", 2, struct.pack("<HH", 0x3F80, b), "not_finite")
    refuse_decode("bf16", 2, b"\0" * 3, "length")

    accept("int8", [])
    accept("int8", [0.0, -0.0])
    accept("int8", [127.0, -127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5])  # scale 1: ties to even
    accept("int8", [1.0])
    accept("int8", [i - 128.0 for i in range(257)])
    for scale in [1e-6, 1.0, 3e7]:
        accept("int8", [rng.gauss(0, scale) for _ in range(300)])
    accept("int8", [rng.choice([-1, 1]) * 10 ** rng.uniform(-12, 3) for _ in range(256)])
    tiny = 127.0 * 2.0**-100
    accept("int8", [tiny, -tiny])
    accept("int8", [tiny * (1 - 2.0**-7), 1e-38])  # scale of the largest is just under 2^-100: zeros
    accept("int8", [tiny * (1 - 2.0**-9)])  # rounds up to 2^-100
    accept("int8", [from_bits(1), -from_bits(0x7FFFFF)])  # subnormals
    accept("int8", [127.0 * 2.0**120, -1e38, 1.0])
    for m in range(128, 256):  # every mantissa of a scale, and values just above it
        s = m * 2.0**-20
        accept("int8", [127 * s, 63.5 * s]) if m % 16 == 0 else None
        accept("int8", [from_bits(bits(127 * s) + 1), -s / 2]) if m % 16 == 1 else None
    for bad, reason in [(float("inf"), "not_finite"), (float("nan"), "not_finite"), (3.4e38, "too_large"),
                        (from_bits(bits(127 * 2.0**120) + 1), "too_large")]:
        refuse_encode("int8", [0.0] * 256 + [1.0, -bad], reason)
    one = 0x3F80
    block = lambda s, *q: struct.pack("<H", s) + struct.pack(f"<{len(q)}b", *q)
    for s in [1, ((127 - 100) << 7) - 1, ((127 + 120) << 7) + 1, 0x7F80, 0x7FC0, 0x8000, 0xBF80]:
        refuse_decode("int8", 2, block(s, 1, 2), "bad_scale")
    refuse_decode("int8", 2, block(one, 0, 0), "zero_block")
    refuse_decode("int8", 2, block(0, 0, 1), "zero_block")
    refuse_decode("int8", 2, block(one, 1, -128), "bad_quant")
    refuse_decode("int8", 2, block(one, 1, 2, 3), "length")
    refuse_decode("int8", 2, block(one, 1), "length")
    refuse_decode("int8", 257, struct.pack("<HH", one, one) + bytes(256) + b"\1", "zero_block")


main()
