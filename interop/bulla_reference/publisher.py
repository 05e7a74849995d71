"""How a publisher cuts content and makes trees (docs/formats/chunking.md and trees.md). No reader needs this; the
vectors do."""

import hashlib
import re

from .blake3 import derive, keyed
from .encoding import byte_string, varint

LEAST, NORMAL, GREATEST = 16384, 65536, 262144
STRICT, LOOSE = 0x0000D90703537000, 0x0000D90F03530000
GEAR = [int.from_bytes(hashlib.md5(bytes([b]) * 64).digest()[:8], "big") for b in range(256)]


def first_chunk(rest):
    if len(rest) <= LEAST:
        return len(rest)
    end, hash = min(len(rest), GREATEST), 0
    for i in range(LEAST, end - end % 2):
        hash = (2 * hash + GEAR[rest[i]]) & (2**64 - 1)
        if hash & (STRICT if i < NORMAL else LOOSE) == 0:
            return i
    return end


def stretch(content):
    if len(content) <= NORMAL:
        yield from [content] if content else []
        return
    rest = memoryview(content)
    while len(rest):
        length = first_chunk(rest)
        yield bytes(rest[:length])
        rest = rest[length:]


def cut(content):
    """The extents of content: (length, plaintext), with None for a hole."""
    start = 0
    for hole in re.finditer(b"\0{65536,}", content):
        yield from ((len(piece), piece) for piece in stretch(content[start : hole.start()]))
        yield hole.end() - hole.start(), None
        start = hole.end()
    yield from ((len(piece), piece) for piece in stretch(content[start:]))


def array(keys, extents):
    """Root and nodes of an array tree, packed from the left."""
    items = [(length, piece if piece is None else keyed(keys["data"], piece)) for length, piece in extents]
    total, height, nodes = sum(length for length, _ in items), 0, []
    while len(items) > 1:
        height, groups = height + 1, [items[i : i + 256] for i in range(0, len(items), 256)]
        items = []
        for group in groups:
            node = bytes([0, height]) + varint(len(group))
            for length, handle in group:
                node += varint(length << 1 | (handle is None)) + (handle or b"")
            nodes.append(node)
            items.append((sum(length for length, _ in group), keyed(keys["array"], node)))
    top = items[0][1]
    return varint(total) + (b"\xff" if top is None else bytes([height]) + top), nodes


def map_tree(keys, entries, salt=bytes(16)):
    """Root and nodes of a map of (key, value)."""
    level, nodes = 0, []
    items = [(key, byte_string(key) + byte_string(value), 1) for key, value in entries]
    total = len(items)
    while True:
        level, made = level + 1, []
        for group in cut_level(items, level, salt):
            node = bytes([0, level]) + varint(len(group)) + b"".join(encoded for _, encoded, _ in group)
            handle, below = keyed(keys["map"], node), sum(count for _, _, count in group)
            nodes.append(node)
            made.append((group[0][0], byte_string(group[0][0]) + handle + varint(below), below))
        items = made
        if len(items) == 1:
            break
    salted = salt != bytes(16)
    return handle + bytes([level | salted << 7]) + varint(total) + (salt if salted else b""), nodes


def cut_level(items, level, salt):
    """Divides the entries of one level, (key, encoded, below), into nodes."""
    ground = derive("bulla 0 map boundary", salt + bytes([level]))
    rank = [int.from_bytes(keyed(ground, key)[:8], "little") for key, _, _ in items]
    size = [len(encoded) for _, encoded, _ in items]
    candidate = [rank[i] * 24576 < size[i] << 64 for i in range(len(items))]
    starts = [0]
    for i in range(4, len(items) - 3):
        if candidate[i] and not any(candidate[i - 3 : i]):
            starts.append(i)
    for start, end in zip(starts, starts[1:] + [len(items)]):
        while sum(size[start:end]) > 65520:
            offset, choices = 0, []
            for i in range(start, end):
                if 16380 <= offset <= 49140:
                    choices.append((rank[i], i))
                offset += size[i]
            _, next_start = min(choices)
            yield items[start:next_start]
            start = next_start
        yield items[start:end]
