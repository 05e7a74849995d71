"""Checkpoints: C2SP signed notes with cosignatures (docs/formats/verification.md, section 6)."""

import base64
import binascii
import hashlib

from . import ed25519
from .encoding import Refused, malformed, text
from .statements import enough

WITNESS = 4  # the algorithm of cosignature/v1 in key ids


def key_id(name, algorithm, key):
    return hashlib.sha256(name.encode() + b"\n" + bytes([algorithm]) + key).digest()[:4]


class Note:
    """The three lines that are signed, and the lines that sign them."""

    def __init__(self, data):
        if len(data) > 16384:
            raise malformed(f"a checkpoint of {len(data)} bytes")
        try:
            self.whole = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise malformed("a checkpoint that is not UTF-8") from error
        self.text, _, self.signatures = self.whole.partition("\n\n")
        self.text += "\n"

    def check(self, volume, log, role):
        """Requires that enough witnesses have signed that this is the log."""
        root = base64.b64encode(log.root).decode()
        if not self.whole.startswith(f"bulla/{text('vol', volume)}/{log.epoch}\n{log.size}\n{root}\n\n"):
            raise Refused("not-signed", "the checkpoint is one of another log")
        enough(len(self.witnesses(role.usable())), role, "witnesses")

    def witnesses(self, keys):
        """Which of the keys have cosigned the text. Lines of anything else are passed over."""
        found = set()
        for line in self.signatures.split("\n")[:100]:
            name, identity, time, signature = cosignature(line)
            for key in keys:
                if name and identity == key_id(name, WITNESS, key):
                    message = f"cosignature/v1\ntime {int.from_bytes(time, 'big')}\n{self.text}"
                    if ed25519.verify(key, message.encode(), signature):
                        found.add(key)
        return found


def cosignature(line):
    """Name, key id, time and signature of a line; nothing where it is no line of a witness."""
    parts = line.split(" ")
    if len(parts) != 3 or parts[0] != "\u2014" or not parts[1]:
        return None, None, None, None
    try:
        blob = base64.b64decode(parts[2], validate=True)
    except (binascii.Error, ValueError):
        blob = b""
    if len(blob) != 76 or base64.b64encode(blob).decode() != parts[2]:
        return None, None, None, None
    return parts[1], blob[:4], blob[4:12], blob[12:]


def line(name, blob):
    """A line that signs a note."""
    return f"\u2014 {name} {base64.b64encode(blob).decode()}"
