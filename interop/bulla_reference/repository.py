"""A repository on disk (docs/formats/repository.md): format file, head, index runs, segments, leaves and tiles.

Everything is checked that the document says about these files, so rot is found also where no reader looks."""

import os
import re
import stat

from . import blake3, blocks
from .encoding import Reader, Refused, ascending, malformed, refusing, unavailable, unsupported

PAGE, PER_PAGE, ENTRY, IDX_TAIL = 4096, 93, 44, 64
FEATURE = re.compile(r"[a-z0-9-]{1,32}\Z")


def damaged(why):
    return Refused("damaged", why)


class Repository:
    def __init__(self, path):
        self.path, self.index, self.segments = path, {}, {}
        with refusing("damaged"):
            self._read_format_file()
            self._read_head()
            for run in self.runs:
                self._read_run(*run)

    # Files.

    def open(self, name):
        """Opens a regular file below the directory; no part of the name may be a symbolic link."""
        at = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in name.split("/")[:-1]:
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
                os.close(at)
                at = below
            last = name.rsplit("/", 1)[-1]
            file = os.fdopen(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at), "rb")
        except FileNotFoundError as error:
            raise unavailable(f"{name} is not there") from error
        except OSError as error:
            raise damaged(f"{name}: {error.strerror}") from error
        finally:
            os.close(at)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise damaged(f"{name} is no regular file")
        return file

    def read(self, name, largest):
        with self.open(name) as file:
            data = file.read(largest + 1)
        if len(data) > largest:
            raise damaged(f"{name} has more than {largest} bytes")
        return data

    # The file `bulla` and the head.

    def _read_format_file(self):
        lines = self.read("bulla", 65536).split(b"\n")
        lines = [line.decode("ascii", "replace") for line in lines]
        if len(lines) < 2 or lines[0] != "bulla repository" or not re.match(r"format (0|[1-9][0-9]*)\Z", lines[1]):
            raise malformed("the file bulla is not one of a repository")
        if lines[1] != "format 0":
            raise unsupported(f"a repository of {lines[1]}")
        if len(lines) != 6 or lines[5] != "":
            raise malformed("the file bulla has other lines than the five")
        for line, name in zip(lines[2:5], ("incompatible", "readonly-compatible", "compatible")):
            word, *features = line.split(" ")
            if word != name or not all(FEATURE.match(feature) for feature in features):
                raise malformed(f"{line!r} in the file bulla")
            ascending(features, "features")
            if features and name == "incompatible":
                raise unsupported(f"a repository with the features {features}")

    def _read_head(self):
        data = self.read("head", 2 << 20)
        reader = Reader(data)
        magic(reader, b"bullahd\n", "head")
        self.runs = [(reader.take(16).hex(), reader.u64(), reader.u64()) for _ in range(bounded(reader.u8(), 64))]
        self.retired = [reader.take(16).hex() for _ in range(bounded(reader.u8(), 64))]
        self.statements = reader.take(bounded(reader.u32(), 1 << 20))
        checksum(reader.take(32), data[:-32], "head")
        reader.end()

    # Index runs.

    def _read_run(self, run, entries, length):
        name = f"index/{run}.idx"
        data = self.read(name, length)
        if not 1 <= entries <= 2**31:
            raise malformed(f"{name} has {entries} entries")
        pages = (entries + PER_PAGE - 1) // PER_PAGE
        reader = Reader(data[max(len(data) - IDX_TAIL, 0) :])
        magic(reader, b"bullaidx", name)
        reader.u32()  # compatible flags
        segments, stated = bounded(reader.u32(), 1 << 22), reader.u64()
        if stated != entries or len(data) != length or length != pages * (PAGE + 32) + segments * 16 + IDX_TAIL:
            raise malformed(f"{name} does not have the length that its numbers tell")
        checksum(reader.take(32), data[pages * PAGE : -32], name)
        fan_out, ids = pages * PAGE, pages * (PAGE + 32)
        names = [data[ids + 16 * i : ids + 16 * i + 16].hex() for i in range(segments)]
        before = b""
        for number in range(pages):
            page = data[number * PAGE : (number + 1) * PAGE]
            checksum(page[4092:], page[:4092], f"page {number} of {name}", 4)
            full = min(PER_PAGE, entries - number * PER_PAGE)
            if any(page[full * ENTRY : 4092]):
                raise malformed(f"page {number} of {name} has bytes behind its entries")
            if page[:32] != data[fan_out + number * 32 : fan_out + number * 32 + 32]:
                raise malformed(f"the fan-out of {name} has another handle for page {number}")
            for i in range(full):
                before = self._add_entry(name, names, page[i * ENTRY : (i + 1) * ENTRY], before)

    def _add_entry(self, name, names, entry, before):
        reader = Reader(entry)
        handle, segment, offset, length = reader.take(32), reader.u32(), reader.u32(), reader.u32()
        if handle <= before:
            raise malformed(f"the handles of {name} do not ascend")
        if segment >= len(names):
            raise malformed(f"{name} names segment {segment} of {len(names)}")
        # The first run that has a handle is right.
        self.index.setdefault(handle, (names[segment], offset, length))
        return handle

    # Segments.

    def frame(self, handle):
        """The frame that lies where the index says. The caller hashes it."""
        if handle not in self.index:
            raise unavailable(f"block {handle.hex()} is not there")
        segment, offset, length = self.index[handle]
        if not 42 <= length <= 36 + blocks.LARGEST + 6:
            raise damaged(f"the index tells of a record of {length} bytes")
        if segment not in self.segments:
            self.segments[segment] = self.open(f"segments/{segment}.seg")
        with refusing("damaged", f"segments/{segment}.seg at {offset}", ("malformed", "bad-frame")):
            claimed, frame = blocks.open_record(os.pread(self.segments[segment].fileno(), length, offset))
            if claimed != handle:
                raise malformed(f"the index leads from {handle.hex()} to the record of {claimed.hex()}")
        return frame

    def check_segments(self, keys):
        """Reads every record of every segment that the index names. Returns how many records there are."""
        total = 0
        for segment in sorted({place[0] for place in self.index.values()}):
            name = f"segments/{segment}.seg"
            with self.open(name) as file, refusing("damaged"):
                total += check_segment(file, name, keys)
        return total


def check_segment(file, name, keys):
    size = os.fstat(file.fileno()).st_size
    if size >= 1 << 32 or size < 16 + 36 + 44:
        raise malformed(f"{name} has {size} bytes")
    magic(Reader(file.read(16)), b"bullaseg", name)
    tail = Reader(os.pread(file.fileno(), 44, size - 44))
    count, stated = tail.u32(), tail.take(32)
    if tail.take(8) != b"bullaend" or count > (size - 96) // 36:
        raise malformed(f"{name} has no end")
    start = size - 44 - 36 * count
    footer = os.pread(file.fileno(), 36 * count + 4, start)
    checksum(stated, footer, name)
    keys = {blocks.KINDS[kind]: key for kind, key in keys.items()}
    for i in range(count):
        entry = Reader(footer[36 * i : 36 * i + 36])
        handle, length = entry.take(32), entry.u32()
        if not 42 <= length <= 36 + blocks.LARGEST + 6:
            raise malformed(f"{name} has a record of {length} bytes")
        claimed, frame = blocks.open_record(file.read(length))
        if claimed != handle:
            raise malformed(f"{name} has another record than its footer says")
        check_frame(handle, frame, keys, name)
    if file.tell() != start - 36 or any(file.read(36)):
        raise malformed(f"the records of {name} do not end where its footer begins")
    return count


def check_frame(handle, frame, keys, name):
    try:
        kind, plaintext = blocks.unframe(frame)
    except Refused as error:
        if error.verdict == "unknown-frame":
            return  # of a later bulla: passed over
        raise
    if blake3.keyed(keys[kind], plaintext) != handle:
        raise Refused("wrong-block", f"{name}: block {handle.hex()} has another hash")


def bounded(number, greatest):
    if number > greatest:
        raise malformed(f"{number} is more than {greatest}")
    return number


def magic(reader, word, name):
    """The beginning of a binary file: a word of eight bytes, format 0, no incompatible flag."""
    if reader.take(8) != word:
        raise malformed(f"{name} does not begin with {word!r}")
    if reader.u32() != 0 or reader.u32() != 0:
        raise unsupported(f"{name} has another format or incompatible flags")


def checksum(stated, data, name, length=32):
    if blake3.hash(data)[:length] != stated:
        raise malformed(f"the checksum of {name} is wrong")
