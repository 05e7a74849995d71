"""Array trees and map trees (docs/formats/trees.md): what a reader checks."""

from collections import namedtuple

from .blocks import LARGEST
from .encoding import Reader, malformed, unsupported

ArrayRoot = namedtuple("ArrayRoot", "length height top")
MapRoot = namedtuple("MapRoot", "handle height entries salt")
# What a parent says about a node of a map: keys lie in [low, high); None means no bound.
MapNode = namedtuple("MapNode", "handle level entries low high")
NODE, ENTRY, KEY = 65536, 4096, 1024
HOLE, LONGEST = 255, 2**63 - 1


def node_head(reader, level):
    version = reader.u8()
    if version != 0:
        raise unsupported(f"a node of format {version}")
    if not 1 <= level <= 16 or reader.u8() != level:
        raise malformed("a node of another level than its parent says")


# Arrays.


def array_root(reader):
    length, height = reader.varint(LONGEST, 1), reader.u8()
    if (height > 16 and height != HOLE) or (height == 0 and length > LARGEST):
        raise malformed(f"an array of height {height} and {length} bytes")
    return ArrayRoot(length, height, None if height == HOLE else reader.take(32))


def array_children(node, level, length):
    """The entries of a node: (length, handle), with None for a hole."""
    reader = Reader(node)
    node_head(reader, level)
    children = []
    for _ in range(reader.varint(256, 1)):
        size, hole = divmod(reader.varint(), 2)
        if size == 0 or (level == 1 and not hole and size > LARGEST):
            raise malformed(f"an extent of {size} bytes")
        if hole and (level > 1 or (children and children[-1][1] is None)):
            raise malformed("a hole above level 1, or beside a hole")
        children.append((size, None if hole else reader.take(32)))
    reader.end()
    total = sum(size for size, _ in children)
    if total > LONGEST or total != length:
        raise malformed("an array node has another length than its parent says")
    return children


def extents(blocks, root, seen=None):
    """The extents of an array in order: (length, plaintext), with None for a hole. With the set `seen`, what was
    read before under the same claims of its parent is left out: enough to check, not to read."""
    if root.height == HOLE:
        yield root.length, None
        return
    waiting = [(root.height, root.length, root.top)]
    while waiting:
        need = level, length, handle = waiting.pop()
        if handle is None:
            yield length, None
            continue
        if seen is not None and need in seen:
            continue
        if seen is not None:
            seen.add(need)
        if level == 0:
            plaintext = blocks.read("data", handle)
            if len(plaintext) != length:
                raise malformed(f"a data block of {len(plaintext)} bytes instead of {length}")
            yield length, plaintext
        else:
            children = array_children(blocks.read("array", handle), level, length)
            waiting += [(level - 1, size, child) for size, child in reversed(children)]


# Maps.


def map_root(reader):
    handle, height, entries = reader.take(32), reader.u8(), reader.varint(least=1)
    salt = reader.take(16) if height & 0x80 else bytes(16)
    if not 1 <= height & 0x7F <= 16 or (height & 0x80 and salt == bytes(16)):
        raise malformed("a map of an impossible height, or with a salt of zeros")
    return MapRoot(handle, height & 0x7F, entries, salt)


def root_node(root):
    return MapNode(root.handle, root.height, root.entries, None, None)


def map_entries(node, need):
    """The entries of a node: (key, value) of a leaf, (key, MapNode) of an interior node."""
    if len(node) > NODE:
        raise malformed(f"a map node of {len(node)} bytes")
    reader = Reader(node)
    node_head(reader, need.level)
    leaf, found = need.level == 1, []
    for _ in range(reader.varint(NODE)):
        start = reader.at
        key = reader.bytes(KEY)
        found.append((key, reader.bytes(ENTRY) if leaf else (reader.take(32), reader.varint(least=1))))
        if reader.at - start > ENTRY:
            raise malformed("an entry of more than 4,096 bytes")
    reader.end()
    check_keys([key for key, _ in found], need)
    if leaf:
        count = len(found)
    else:
        count = sum(below for _, (_, below) in found)
        ends = [key for key, _ in found[1:]] + [need.high]
        found = [
            (key, MapNode(handle, need.level - 1, below, key, high))
            for (key, (handle, below)), high in zip(found, ends)
        ]
    if count != need.entries:
        raise malformed("a map node has another number of entries than its parent says")
    return found


def check_keys(keys, need):
    is_root = need.low is None
    if len(keys) < (4 if not is_root else 1 if need.level == 1 else 2):
        raise malformed(f"a map node of {len(keys)} entries")
    if any(before >= after for before, after in zip(keys, keys[1:])):
        raise malformed("the keys of a map node do not ascend strictly")
    if not is_root and keys[0] != need.low:
        raise malformed("a map node does not begin with its separator")
    if need.high is not None and keys[-1] >= need.high:
        raise malformed("a key lies outside of its node's interval")


def scan(blocks, root):
    """All entries in order."""
    waiting = [root_node(root)]
    while waiting:
        need = waiting.pop()
        found = map_entries(blocks.read("map", need.handle), need)
        if need.level == 1:
            yield from found
        else:
            waiting += [child for _, child in reversed(found)]


def lookup(blocks, root, key):
    """The value of a key, or None if its absence is proved."""
    need = root_node(root)
    while True:
        found = map_entries(blocks.read("map", need.handle), need)
        if need.level == 1:
            return dict(found).get(key)
        if key < found[0][0]:
            return None
        need = [child for first, child in found if first <= key][-1]
