"""Changes of a file that break readers: bits, lengths, numbers at edges, words, pieces twice."""

import random
import re
import struct

WORDS = [
    b"-1", b"0", b"1e309", b"nan", b"9" * 30, b"16x4", b"508", b"/dev/zero", b"..", b"~", b"(", b"",
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"=1+1", b"null", b"[]", b"{}", b'"', b"[" * 2000,
]  # fmt: skip
EDGES = [0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1]


def mutate(data: bytes, chance: random.Random) -> bytes:
    """The file with one to three changes, all drawn from `chance`."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice([1, 2, 4, 8, 16, 64, 256]))
        kind = chance.randrange(9)
        if kind <= 1 and at < len(data):  # a bit
            data = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        elif kind == 2:  # a number at an edge, in either byte order
            width, order = chance.choice("BHIQ"), chance.choice("<>")
            size = struct.calcsize(width)
            number = chance.choice(EDGES) % 256**size
            data = data[:at] + struct.pack(order + width, number) + data[at + size :]
        elif kind == 3:  # a piece is gone, or stands twice
            data = data[:at] + data[end:] if chance.random() < 0.5 else data[:end] + data[at:]
        elif kind == 4:  # the rest is gone
            data = data[:at]
        elif kind == 5:  # a word
            data = data[:at] + chance.choice(WORDS) + data[chance.choice([at, end]) :]
        elif kind == 6:  # in the place of a word
            parts = re.split(rb"([ \n,:;\"])", data)
            parts[chance.randrange(len(parts))] = chance.choice(WORDS)
            data = b"".join(parts)
        elif kind == 7:  # random bytes
            data = data[:at] + chance.randbytes(end - at) + data[end:]
        else:  # a piece of it elsewhere
            other = chance.randrange(len(data) + 1)
            data = data[:other] + data[at:end] + data[other:]
    return data
