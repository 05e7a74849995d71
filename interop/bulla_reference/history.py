"""The log of a volume: RFC 6962 with SHA-256 (docs/formats/statements.md, Log)."""

import hashlib

from .encoding import Refused


def leaf(data):
    return hashlib.sha256(b"\0" + data).digest()


def pair(left, right):
    return hashlib.sha256(b"\1" + left + right).digest()


def fold(subtrees):
    """The root over the perfect subtrees of a log, largest first."""
    if not subtrees:
        return hashlib.sha256(b"").digest()
    root = subtrees[-1][1]
    for _, left in reversed(subtrees[:-1]):
        root = pair(left, root)
    return root


def append(subtrees, hash):
    """The perfect subtrees after one more leaf."""
    subtrees, size = list(subtrees), 1
    while subtrees and subtrees[-1][0] == size:
        hash, size = pair(subtrees.pop()[1], hash), size * 2
    return subtrees + [(size, hash)]


def frontier(leaves):
    subtrees = []
    for hash in leaves:
        subtrees = append(subtrees, hash)
    return subtrees


def perfect(hashes):
    """The root of a perfect tree over 2^n hashes."""
    while len(hashes) > 1:
        hashes = [pair(hashes[i], hashes[i + 1]) for i in range(0, len(hashes), 2)]
    return hashes[0]


def tile_names(size):
    """The tiles of a log: (level, index, how many hashes)."""
    level = 0
    while size and level < 8:
        yield from ((level, index, min(256, size - 256 * index)) for index in range((size + 255) // 256))
        size, level = size // 256, level + 1


def tiles(leaves):
    """The hashes of each tile, made from the hashes of all leaves: {(level, index): hashes}."""
    made, level, hashes = {}, 0, list(leaves)
    while hashes and level < 8:
        groups = [hashes[i : i + 256] for i in range(0, len(hashes), 256)]
        made.update({(level, index): group for index, group in enumerate(groups)})
        hashes = [perfect(group) for group in groups if len(group) == 256]
        level += 1
    return made


def tile_hashes(data, count):
    """The first `count` hashes of a tile, which may have more."""
    if len(data) % 32 or not 32 * count <= len(data) <= 256 * 32:
        raise Refused("bad-history", f"a tile of {len(data)} bytes instead of {32 * count}")
    return [data[i : i + 32] for i in range(0, 32 * count, 32)]


def begins(old, new, subtrees, tile):
    """Shows that a log of `old.size` leaves begins the one of `new` leaves with these perfect subtrees, from tiles:
    `tile(level, index, count)` gives the first `count` hashes of a tile. Raises if it does not."""
    if old.size > new:
        raise Refused("fork", "the older log is longer than the newer one")
    ours, rest, start = [], old.size, 0
    for size, hash in subtrees:
        if size > rest:
            break
        ours.append((size, hash))
        rest, start = rest - size, start + size
    while rest:
        # `rest` leaves lie under the subtree (size, hash), which begins at leaf `start`.
        level = (size.bit_length() - 2) // 8
        unit = 256**level
        index, first = divmod(start // unit, 256)
        count = size // unit
        hashes = tile(level, index, first + count)[first : first + count]
        if len(hashes) != count or perfect(hashes) != hash:
            raise Refused("bad-history", "a tile of the log does not come to the root above it")
        # Halve what is known, and keep each left half that the older log has whole.
        while rest and len(hashes) > 1:
            half = len(hashes) // 2
            size //= 2
            if rest >= size:
                ours.append((size, perfect(hashes[:half])))
                rest, start, hashes = rest - size, start + size, hashes[half:]
            else:
                hashes = hashes[:half]
        hash = hashes[0]
    if fold(ours) != old.root:
        raise Refused("fork", f"the log of {old.size} leaves does not begin the log of {new} leaves")
