"""Inodes and directory entries (docs/formats/inode.md)."""

from dataclasses import dataclass, field
from typing import Optional

from .encoding import Reader, malformed, unsupported
from .trees import ArrayRoot, MapRoot, array_root, map_root

LARGEST = 8192
IN_ENTRY, IN_BLOCK = 256, 4096  # bytes of content that an inode itself may hold
FILE, DIRECTORY, LINK = "file", "directory", "symbolic link"
OTHERS = {0x04: "named pipe", 0x05: "socket", 0x06: "character device", 0x07: "block device"}


@dataclass
class Inode:
    kind: str
    mode: int
    seconds: int
    nanoseconds: int
    data: bytes = b""  # of a small file, or the target of a link
    array: Optional[ArrayRoot] = None
    map: Optional[MapRoot] = None
    opaque: bool = False
    device: Optional[tuple] = None
    links: int = 1
    group: Optional[bytes] = None
    owner: Optional[tuple] = None
    xattrs: list = field(default_factory=list)
    xattr_array: Optional[ArrayRoot] = None
    ctime: Optional[tuple] = None  # of files of shared volumes

    def size(self):
        if self.array:
            return self.array.length
        return self.map.entries if self.map else len(self.data)


def decode(data, most=IN_BLOCK):
    """An inode that lies in a block, or where `most` is IN_ENTRY, in an entry of a directory."""
    reader = Reader(data)
    version = reader.u8()
    if version != 0:
        raise unsupported(f"an inode of format {version}")
    if len(data) > LARGEST:
        raise malformed(f"an inode of {len(data)} bytes")
    number, mode = reader.u8(), reader.u16()
    if mode > 0o7777:
        raise malformed(f"a mode of {mode:o}")
    inode = Inode(FILE, mode, *_time(reader))
    _content(reader, number, inode, most)
    _tags(reader, inode)
    return inode


def _time(reader):
    """Seconds and nanoseconds."""
    zigzag = reader.varint()
    return (zigzag >> 1) ^ -(zigzag & 1), reader.varint(999_999_999)


def _content(reader, number, inode, most):
    if number == 0x11:
        inode.data = reader.bytes(most, 1)
    elif number == 0x21:
        inode.array = array_root(reader)
        if inode.array.length <= 256:
            raise malformed("a small file that lies in blocks")
    elif number in (0x02, 0x22, 0x12, 0x32):
        inode.kind, inode.opaque = DIRECTORY, number >= 0x20
        inode.map = map_root(reader) if number & 0x10 else None
    elif number == 0x03:
        inode.kind, inode.data = LINK, reader.bytes(4095, 1)
        if 0 in inode.data:
            raise malformed("the target of a link holds a NUL")
    elif number in OTHERS:
        inode.kind = OTHERS[number]
        if number >= 0x06:
            inode.device = reader.varint(2**32 - 1), reader.varint(2**32 - 1)
    elif number != 0x01:
        raise unsupported(f"an inode of kind {number:#04x}")


def _tags(reader, inode):
    before, extensions, start = 0, 0, None
    while reader.left():
        at, tag = reader.at, reader.u8()
        if tag <= before or (tag == 5 and before == 4):
            raise malformed("the tags of an inode do not ascend, or attributes lie in two places")
        if 6 < tag < 0x80:
            raise unsupported(f"an inode with tag {tag}")
        before = tag
        if tag == 1:
            inode.links = reader.varint(2**32 - 1, 2)
        elif tag == 2:
            inode.group = reader.take(16)
            if inode.links == 1 or inode.kind == DIRECTORY:
                raise malformed("a hard-link set of one link or of a directory")
        elif tag == 3:
            inode.owner = reader.varint(2**32 - 1), reader.varint(2**32 - 1)
        elif tag == 4:
            inode.xattrs = xattr_list(reader.bytes(1024))
        elif tag == 6:
            inode.ctime = _time(reader)
        elif tag >= 0x80:
            # An extension, which a reader may ignore. All of them together are bounded.
            start = at if start is None else start
            extensions += 1
            reader.bytes(LARGEST)
            if extensions > 16 or reader.at - start > 2048:
                raise malformed("too many extensions")
        else:
            inode.xattr_array = array_root(reader)
            if not 1025 <= inode.xattr_array.length <= 1 << 20:
                raise malformed("attributes of a wrong length for blocks of their own")


def xattr_list(data):
    reader, found = Reader(data), []
    for _ in range(reader.varint(len(data), 1)):
        name, value = reader.bytes(255, 1), reader.bytes(65536)
        if 0 in name or name.startswith(b"user.bulla."):
            raise malformed(f"an attribute with the name {name!r}")
        if found and name <= found[-1][0]:
            raise malformed("the names of attributes do not ascend strictly")
        found.append((name, value))
    reader.end()
    return found


def is_name(name):
    return 1 <= len(name) <= 255 and name not in (b".", b"..") and not set(name) & {0, ord("/")}


def entry(value):
    """What a directory says about a name: an inode, or the handle of its block."""
    form = Reader(value).u8()
    if form not in (0, 0xFF):
        raise unsupported(f"an entry of form {form:#04x}")
    if form == 0:
        return decode(value, IN_ENTRY), None
    if len(value) != 33:
        raise malformed("the handle of an inode does not have 32 bytes")
    return None, value[1:]
