"""One reader's state about one volume (docs/formats/statements.md, Floor)."""

from dataclasses import dataclass, field
from typing import Optional

from .blake3 import hash as digest
from .encoding import Reader, ascending, malformed, number, unsupported, varint
from .statements import POLICY, Log, log, signed


@dataclass
class Adopted:
    version: int
    record: bytes
    log: Log
    root: Optional[bytes] = None


@dataclass
class Floor:
    """What one reader knows about one volume. An empty one is a reader's first."""

    volume: bytes
    newest_start: int = 0
    policies: list = field(default_factory=list)
    adopted: Optional[Adopted] = None
    policy_fork: Optional[tuple] = None  # two policy hashes
    record_fork: Optional[tuple] = None  # version, then (record hash, Log) twice
    refused: tuple = ()

    def encode(self):
        """The bytes that a reader stores."""
        out = bytes(2) + self.volume + number(self.newest_start) + varint(len(self.policies))
        out += b"".join(policy.signed for policy in self.policies) + bytes([self.adopted is not None])
        if self.adopted:
            out += number(self.adopted.version) + self.adopted.record + self.adopted.log.encode()
            out += bytes([self.adopted.root is not None]) + (self.adopted.root or b"")
        out += bytes([self.policy_fork is not None]) + b"".join(self.policy_fork or ())
        out += bytes([self.record_fork is not None])
        if self.record_fork:
            version, *branches = self.record_fork
            out += number(version) + b"".join(hash + log.encode() for hash, log in branches)
        out += varint(len(self.refused)) + b"".join(self.refused)
        return out + digest(out)


def floor(data):
    """A floor that a reader stored. Whatever breaks a rule is damage: the reader must stop."""
    if len(data) < 32 or digest(data[:-32]) != data[-32:]:
        raise malformed("the checksum of a floor is wrong")
    reader = Reader(data[:-32])
    if reader.u16() != 0:
        raise unsupported("a floor of another format")
    made = Floor(reader.take(32), reader.u64())
    made.policies = [signed(reader) for _ in range(reader.varint(8))]
    if any(policy.purpose != POLICY for policy in made.policies):
        raise malformed("a floor with a statement that is no policy")
    if reader.flag():
        made.adopted = Adopted(reader.u64(), reader.take(32), log(reader))
        made.adopted.root = reader.take(32) if reader.flag() else None
        if not made.policies:
            raise malformed("a floor with an adopted record and no policy")
    if reader.flag():
        made.policy_fork = tuple(ascending([reader.take(32), reader.take(32)], "the hashes of a fork"))
    if reader.flag():
        version, branches = reader.u64(), [(reader.take(32), log(reader)) for _ in range(2)]
        ascending([hash for hash, _ in branches], "the hashes of a fork")
        made.record_fork = version, *branches
    made.refused = tuple(ascending([reader.take(32) for _ in range(reader.varint(16))], "refused hashes"))
    reader.end()
    return made
