"""BLAKE3 with 32 bytes of output (https://github.com/BLAKE3-team/BLAKE3-specs): hash, keyed hash, key derivation.

Many chunks are hashed at once: a word of the state is one large number that has the word of each chunk in 64 bits of
its own (a *lane*). So it takes some ten megabytes a second without any package."""

import functools
import struct

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, PARENT, ROOT, KEYED, CONTEXT, MATERIAL = 1, 2, 4, 8, 16, 32, 64
# The columns and diagonals that a round mixes.
MIXED = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


@functools.lru_cache
def ones(lanes):
    """The number 1 in each lane."""
    return ((1 << 64 * lanes) - 1) // (2**64 - 1)


def pack(words):
    return int.from_bytes(struct.pack(f"<{len(words)}Q", *words), "little")


def unpack(number, lanes):
    return struct.unpack(f"<{lanes}Q", number.to_bytes(8 * lanes, "little"))


def compress(chaining, words, counter, length, flags, lanes):
    """The compression function in each lane; returns the new chaining value."""
    one = ones(lanes)
    mask = one * 0xFFFFFFFF
    state = [*chaining, *(one * word for word in IV[:4]), counter, 0, one * length, one * flags]
    for _ in range(7):
        for place, (i, j, k, m) in enumerate(MIXED):
            a, b, c, d = state[i], state[j], state[k], state[m]
            a = (a + b + words[2 * place]) & mask
            d ^= a
            d = (d >> 16 | d << 16) & mask
            c = (c + d) & mask
            b ^= c
            b = (b >> 12 | b << 20) & mask
            a = (a + b + words[2 * place + 1]) & mask
            d ^= a
            d = (d >> 8 | d << 24) & mask
            c = (c + d) & mask
            b ^= c
            b = (b >> 7 | b << 25) & mask
            state[i], state[j], state[k], state[m] = a, b, c, d
        words = [words[i] for i in PERMUTATION]
    return [state[i] ^ state[i + 8] for i in range(8)]


def full_chunks(data, key, flags, lanes):
    """The chaining values of the first chunks, 1,024 bytes each, none of them the last one."""
    words = struct.unpack(f"<{256 * lanes}I", data[: 1024 * lanes])
    chaining, counter = [ones(lanes) * word for word in key], pack(range(lanes))
    for block in range(16):
        here = [pack(words[16 * block + i :: 256]) for i in range(16)]
        edge = CHUNK_START if block == 0 else CHUNK_END if block == 15 else 0
        chaining = compress(chaining, here, counter, 64, flags | edge, lanes)
    return list(zip(*(unpack(word, lanes) for word in chaining)))


def last_chunk(data, key, flags, counter):
    """The chaining value of the last chunk, which has up to 1,024 bytes, or none if there is no content."""
    blocks, chaining = [data[i : i + 64] for i in range(0, len(data), 64)] or [b""], key
    flags |= CHUNK_START
    for block in blocks[:-1]:
        chaining = compress(chaining, struct.unpack("<16I", block), counter, 64, flags & ~ROOT, 1)
        flags &= ~CHUNK_START
    words = struct.unpack("<16I", blocks[-1].ljust(64, b"\0"))
    return compress(chaining, words, counter, len(blocks[-1]), flags | CHUNK_END, 1)


def _hash(data, key, flags):
    before = max(len(data) - 1, 0) // 1024
    values = full_chunks(data, key, flags, before) if before else []
    root = 0 if before else ROOT
    values.append(tuple(last_chunk(data[1024 * before :], key, flags | root, before)))
    while len(values) > 1:
        pairs = len(values) // 2
        root = ROOT if len(values) == 2 else 0
        words = [pack([value[i] for value in values[side : 2 * pairs : 2]]) for side in (0, 1) for i in range(8)]
        above = compress([ones(pairs) * word for word in key], words, 0, 64, flags | PARENT | root, pairs)
        values = list(zip(*(unpack(word, pairs) for word in above))) + values[2 * pairs :]
    return struct.pack("<8I", *values[0])


def hash(data):
    return _hash(data, IV, 0)


def keyed(key, data):
    return _hash(data, struct.unpack("<8I", key), KEYED)


def derive(context, material):
    return _hash(material, struct.unpack("<8I", _hash(context.encode(), IV, CONTEXT)), MATERIAL)
