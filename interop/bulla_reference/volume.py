"""The tree of a version: paths, contents and the walk over everything (docs/formats/trees.md and inode.md)."""

from dataclasses import dataclass

from . import inode as inodes
from .encoding import malformed, not_found, refusing
from .trees import extents, lookup, scan

DEEPEST = 2048  # nested directories
MOST = 2**64 - 1


@dataclass(frozen=True)
class Below:
    """What lies below a directory. `linked` holds (hard-link identity, size) of files with several names."""

    files: int = 0
    directories: int = 0
    other: int = 0
    bytes: int = 0
    linked: frozenset = frozenset()

    @classmethod
    def joined(cls, parts):
        sums = (sum(getattr(part, name) for part in parts) for name in ("files", "directories", "other", "bytes"))
        return cls(*sums, frozenset().union(*(part.linked for part in parts)))

    def totals(self):
        """Files, directories, others and bytes as a record states them."""
        size = self.bytes + sum(size for _, size in self.linked)
        return tuple(min(n, MOST) for n in (self.files, self.directories, self.other, size))


class Tree:
    def __init__(self, blocks, root):
        self.blocks, self.seen, self.known = blocks, set(), {}
        self.root = self.load(None, root)
        if self.root.kind != inodes.DIRECTORY:
            raise malformed("the root is no directory")

    def load(self, inode, handle):
        return inode or inodes.decode(self.blocks.read("inode", handle))

    def find(self, path):
        """The inode at a path of names. Refuses as not-found where absence is proved."""
        inode = self.root
        for name in path:
            if inode.kind != inodes.DIRECTORY:
                raise not_found(f"what lies above {name!r} is a {inode.kind}")
            value = lookup(self.blocks, inode.map, name) if inode.map else None
            if value is None:
                raise not_found(f"{name!r} is proved to be absent")
            inode = self.load(*inodes.entry(value))
        return inode

    def content(self, inode):
        """The pieces of a file's content."""
        if inode.kind != inodes.FILE:
            raise not_found(f"this is a {inode.kind} and no file")
        if inode.array is None:
            yield inode.data
            return
        for length, plaintext in extents(self.blocks, inode.array):
            if plaintext is None:
                for start in range(0, length, 1 << 20):
                    yield bytes(min(1 << 20, length - start))
            else:
                yield plaintext

    def walk(self):
        """Checks everything that the root reaches. Returns what lies in the tree."""
        self.check_inode(self.root, b"/")
        return self.below(self.root, b"", 1)

    def below(self, directory, path, depth):
        if depth > DEEPEST:
            raise malformed(f"more than {DEEPEST} nested directories")
        if directory.map is None:
            return Below(directories=1)
        # A publisher can put one directory into many: each is walked once.
        if directory.map not in self.known:
            found = [Below(directories=1)]
            for name, value in scan(self.blocks, directory.map):
                at = path + b"/" + name
                if not inodes.is_name(name):
                    raise malformed(f"{at!r}: a name that no file may have")
                inode = self.load(*inodes.entry(value))
                self.check_inode(inode, at)
                if inode.kind == inodes.DIRECTORY:
                    found.append(self.below(inode, at, depth + 1))
                else:
                    found.append(count(inode))
            self.known[directory.map] = Below.joined(found)
        return self.known[directory.map]

    def check_inode(self, inode, path):
        """Checks the content of a file and the attributes of whatever it is."""
        with refusing("bad-tree", f"{path!r}"):
            if inode.array:
                for _ in extents(self.blocks, inode.array, self.seen):
                    pass
            if inode.xattr_array:
                pieces = extents(self.blocks, inode.xattr_array)
                inodes.xattr_list(b"".join(bytes(length) if p is None else p for length, p in pieces))


def count(inode):
    if inode.kind != inodes.FILE:
        return Below(other=1)
    if inode.group:
        return Below(files=1, linked=frozenset([(inode.group, inode.size())]))
    return Below(files=1, bytes=inode.size())
