"""Handles, frames and records (docs/formats/blocks.md)."""

import zstandard

from .blake3 import derive, keyed
from .encoding import Reader, Refused, malformed, refusing

LARGEST = 1 << 20
KINDS = {"data": 1, "array": 2, "map": 3, "inode": 4}
ZSTD_MAGIC = bytes.fromhex("28b52ffd")


def block_keys(iv):
    """The key of each kind of blocks in the volume with this iv."""
    return {kind: derive(f"bulla 0 block {kind}", iv) for kind in KINDS}


def refuse_frame(why):
    return Refused("bad-frame", why)


def unframe(frame, wanted=None):
    """Kind and plaintext of a frame. Nothing is proved before the plaintext is hashed."""
    if len(frame) < 6:
        raise refuse_frame("a frame of less than six bytes")
    kind, codec, length = frame[0], frame[1], int.from_bytes(frame[2:6], "little")
    payload = frame[6:]
    if kind not in KINDS.values():
        raise Refused("unknown-frame", f"a frame of kind {kind}")
    if length > LARGEST:
        raise refuse_frame(f"a block of {length} bytes")
    if codec > 1:
        raise Refused("unknown-frame", f"a frame of codec {codec}")
    if (codec == 0 and len(payload) != length) or (codec == 1 and len(payload) >= length):
        raise refuse_frame(f"a payload of {len(payload)} bytes for a block of {length}")
    if wanted not in (None, kind):
        raise Refused("wrong-kind", f"a block of kind {kind} instead of {wanted}")
    return kind, payload if codec == 0 else _inflate(payload, length)


def _inflate(payload, length):
    """Exactly one zstd frame with its content size and without a dictionary."""
    if frame_size(payload, length) != len(payload):
        raise refuse_frame("a payload that does not end with its zstd frame")
    try:
        plaintext = zstandard.ZstdDecompressor().decompress(payload, max_output_size=length)
    except zstandard.ZstdError as error:
        raise refuse_frame(f"a payload that zstd refuses: {error}") from error
    if len(plaintext) != length:
        raise refuse_frame(f"a payload that decodes to {len(plaintext)} bytes instead of {length}")
    return plaintext


def frame_size(payload, length):
    """How many bytes the zstd frame at the start of the payload takes (RFC 8878, 3.1.1). It must state `length`."""
    with refusing("bad-frame", "zstd"):
        reader = Reader(payload)
        if reader.take(4) != ZSTD_MAGIC:
            raise malformed("no frame")
        descriptor = reader.u8()
        single, checked = descriptor >> 5 & 1, descriptor >> 2 & 1
        window = 0 if single else 1
        reader.take(window)
        dictionary = reader.fixed((0, 1, 2, 4)[descriptor & 3])
        field = (single, 2, 4, 8)[descriptor >> 6]
        size = reader.fixed(field) + (256 if field == 2 else 0)
        if field == 0 or size != length or dictionary != 0:
            raise malformed("no content size, a wrong one, or a dictionary")
        last = False
        while not last:
            header = reader.fixed(3)
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            reader.take(1 if kind == 1 else size)  # kind 1: one byte that is repeated
        reader.take(4 * checked)
        return reader.at


def open_record(record):
    """Claimed handle and frame of a record."""
    reader = Reader(record)
    handle, length = reader.take(32), reader.u32()
    if not 6 <= length <= LARGEST + 6 or length != reader.left():
        raise refuse_frame(f"a frame of {length} bytes")
    return handle, reader.take(length)


class Blocks:
    """Blocks of one volume from any source: `fetch` gives the frame of a handle."""

    def __init__(self, iv, fetch):
        self.keys, self.fetch = block_keys(iv), fetch

    def read(self, kind, handle):
        """The plaintext, which hashes to the handle under the key of the kind."""
        _, plaintext = unframe(self.fetch(handle), KINDS[kind])
        if keyed(self.keys[kind], plaintext) != handle:
            raise Refused("wrong-block", f"block {handle.hex()} has another hash")
        return plaintext
