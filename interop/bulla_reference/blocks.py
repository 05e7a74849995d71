"""Handles, frames and records (docs/formats/blocks.md)."""

import blake3
import zstandard

from .encoding import Reader, Refused

LARGEST = 1 << 20
KINDS = {"data": 1, "array": 2, "map": 3, "inode": 4}
ZSTD_MAGIC = bytes.fromhex("28b52ffd")


def digest(data):
    return blake3.blake3(data).digest()


def derive(context, material):
    return blake3.blake3(material, derive_key_context=context).digest()


def keyed(key, data):
    return blake3.blake3(data, key=key).digest()


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
    if payload[:4] != ZSTD_MAGIC:
        raise refuse_frame("a compressed payload that is no zstd frame")
    try:
        head = zstandard.get_frame_parameters(payload)
        if head.content_size != length or head.dict_id != 0:
            raise refuse_frame("a zstd frame that states no content size, a wrong one, or a dictionary")
        plaintext = zstandard.ZstdDecompressor().decompress(payload, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise refuse_frame(f"a payload that zstd refuses: {error}") from error
    if len(plaintext) != length:
        raise refuse_frame(f"a payload that decodes to {len(plaintext)} bytes instead of {length}")
    return plaintext


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
