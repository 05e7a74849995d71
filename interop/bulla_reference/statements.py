"""Statements, signed statements and heads, decoded (docs/formats/statements.md). Nothing here is believed yet:
judge.py decides that."""

import unicodedata
from dataclasses import dataclass, field
from typing import Optional

from . import ed25519, history
from .blake3 import derive
from .blake3 import hash as digest
from .encoding import Reader, Refused, ascending, malformed, number, unsupported

POLICY, ROOT, TIMESTAMP = 1, 2, 3
NAMES = {POLICY: "policy", ROOT: "root", TIMESTAMP: "timestamp"}
SIGNING = b"bulla statement signature 0\n"
NEVER = 2**64 - 1


@dataclass(frozen=True)
class Log:
    epoch: int
    size: int
    root: bytes

    def encode(self):
        return number(self.epoch) + number(self.size) + self.root


@dataclass(frozen=True)
class Role:
    needed: int
    keys: tuple  # of (algorithm, bytes)

    def usable(self):
        return [key for algorithm, key in self.keys if algorithm == 1]


@dataclass
class Statement:
    data: bytes
    purpose: int
    volume: bytes
    hash: bytes = b""
    signatures: list = field(default_factory=list)  # of ((algorithm, key), signature)
    signed: bytes = b""  # the signed statement as it was read

    def __post_init__(self):
        self.hash = derive(f"bulla 0 statement {NAMES[self.purpose]}", self.data)

    def require(self, role, what):
        """Requires that enough keys of a role have signed, and that none of their signatures is bad."""
        usable, good = set(role.usable()), 0
        for (algorithm, key), signature in self.signatures:
            if algorithm == 1 and key in usable:
                if not ed25519.verify(key, SIGNING + self.data, signature):
                    raise Refused("not-signed", f"a bad signature of one of the {what}")
                good += 1
        enough(good, role, what)


@dataclass
class Policy(Statement):
    number: int = 0
    not_after: int = NEVER
    owners: Role = None
    publishers: Role = None
    record_maximum: int = 0
    timestamps: Role = None
    timestamp_maximum: int = 0
    log: Role = None
    witnesses: Role = None
    name: str = ""
    iv: bytes = b""
    previous: Optional[bytes] = None
    epoch: int = 0
    last: Optional[tuple] = None  # (version, record hash, Log)
    revoked: bool = False
    lowers: bool = False
    successor: Optional[bytes] = None
    refused: tuple = ()


@dataclass
class Record(Statement):
    version: int = 0
    start: int = 0
    duration: int = 0
    root: bytes = b""
    totals: tuple = ()
    policy: tuple = ()  # (number, hash)
    log: Log = None
    mirrors: tuple = ()


@dataclass
class Timestamp(Statement):
    record: bytes = b""
    policy: tuple = ()
    issued: int = 0
    until: int = 0


def key(reader):
    algorithm = reader.varint(least=1)
    data = reader.bytes(4096)
    if algorithm == 1 and not ed25519.is_key(data):
        raise malformed("an Ed25519 key that is not canonical or of small order")
    return algorithm, data


def role(reader, least):
    needed, count = reader.u8(), reader.u8()
    if count > 32 or not least <= needed <= count:
        raise malformed(f"a role that needs {needed} of {count} keys")
    return Role(needed, tuple(ascending([key(reader) for _ in range(count)], "the keys of a role")))


def enough(good, role, what):
    """Requires that `good` signatures are what a role needs."""
    if good < role.needed:
        verdict = "unsupported" if role.needed > len(role.usable()) else "not-signed"
        raise Refused(verdict, f"{good} of the {what} have signed, and {role.needed} must")


def log(reader):
    return Log(reader.u64(), reader.u64(), reader.take(32))


def statement(data):
    """Decodes a statement of any known purpose."""
    if len(data) > 131072:
        raise malformed("a statement of more than 131,072 bytes")
    reader = Reader(data)
    if reader.u16() != 0:
        raise unsupported("a statement of another format")
    purpose = reader.u8()
    if purpose not in NAMES:
        raise unsupported(f"a statement of purpose {purpose}")
    reader.u16()  # compatible flags
    if reader.u16() != 0:
        raise unsupported("a statement with incompatible flags")
    kind, body = {POLICY: (Policy, _policy), ROOT: (Record, _record), TIMESTAMP: (Timestamp, _timestamp)}[purpose]
    made = kind(data, purpose, reader.take(32))
    body(reader, made)
    _extensions(reader)
    return made


def _extensions(reader):
    before = -1
    for _ in range(reader.varint(64)):
        tag = reader.varint()
        if tag <= before:
            raise malformed("the tags of extensions do not ascend strictly")
        reader.bytes(131072)
        if tag % 2:
            raise unsupported(f"a statement with extension {tag}")
        before = tag
    reader.end()


def _policy(reader, made):
    made.number, made.not_after = reader.u64(), reader.u64()
    made.owners, made.publishers = role(reader, 1), role(reader, 1)
    made.record_maximum = reader.u64()
    if made.record_maximum == 0:
        raise malformed("a policy whose records may not last")
    made.timestamps, made.timestamp_maximum = role(reader, 0), reader.u64()
    made.log, made.witnesses = role(reader, 0), role(reader, 0)
    if len({made.timestamps.needed > 0, bool(made.timestamps.keys), made.timestamp_maximum > 0}) > 1:
        raise malformed("keys, threshold and maximum of timestamps are not all there or all absent")
    if bool(made.log.keys) != (made.log.needed > 0):
        raise malformed("log keys without a threshold, or a threshold without keys")
    if made.number == 0:
        _genesis(reader, made)
    else:
        _successor(reader, made)


def _genesis(reader, made):
    try:
        made.name = reader.bytes(64).decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed("the name of a volume is not UTF-8") from error
    if any(unicodedata.category(c) == "Cc" for c in made.name):
        raise malformed("the name of a volume has control characters")
    reader.take(32)  # random
    if reader.u8() != 1:
        raise unsupported("a policy with another hash algorithm")
    made.iv = reader.take(32)


def _successor(reader, made):
    made.previous, made.epoch, parts = reader.take(32), reader.u64(), reader.u8()
    if parts & ~31:
        raise unsupported(f"a policy with the parts {parts:#x}")
    if (parts & 4 and not parts & 2) or (parts & 8 and not parts & 1):
        raise malformed(f"a policy with the parts {parts:#x}")
    if parts & 1:
        made.last = reader.u64(), reader.take(32), log(reader)
    made.revoked, made.lowers = bool(parts & 2), bool(parts & 8)
    if parts & 4:
        made.successor = reader.take(32)
    if parts & 16:
        count = reader.u8()
        if not 1 <= count <= 16:
            raise malformed(f"a policy that refuses {count} others")
        made.refused = tuple(ascending([reader.take(32) for _ in range(count)], "refused policies"))


def _record(reader, made):
    made.version, made.start, made.duration = reader.u64(), reader.u64(), reader.u64()
    made.root = reader.take(32)
    made.totals = tuple(reader.u64() for _ in range(4))
    made.policy, made.log = (reader.u64(), reader.take(32)), log(reader)
    made.mirrors = tuple(reader.bytes(255, 1) for _ in range(reader.varint(16)))
    if made.version == 0:
        raise malformed("a record of version 0")
    if any(not 0x21 <= byte <= 0x7E for mirror in made.mirrors for byte in mirror):
        raise malformed("a mirror that is not printable ASCII")


def _timestamp(reader, made):
    made.record, made.policy = reader.take(32), (reader.u64(), reader.take(32))
    made.issued, made.until = reader.u64(), reader.u64()


def signed(reader):
    """A signed statement. It tells where it ends."""
    start = reader.at
    made = statement(reader.bytes(131072))
    for _ in range(reader.varint(80)):
        signer, signature = (reader.varint(least=1), reader.bytes(4096)), reader.bytes(16384)
        if signer[0] == 1 and (len(signer[1]) != 32 or len(signature) != 64):
            raise malformed("an Ed25519 key or signature of another length")
        made.signatures.append((signer, signature))
    ascending([signer for signer, _ in made.signatures], "the keys of signatures")
    made.signed = reader.data[start : reader.at]
    if len(made.signed) > 262144:
        raise malformed("a signed statement of more than 262,144 bytes")
    return made


@dataclass
class Head:
    policies: list
    record: Record
    timestamp: Optional[Timestamp]
    checkpoint: bytes
    frontier: list  # of (size, root of a perfect subtree), largest first
    log_size: int
    later_log: Optional[tuple] = None

    def begins(self):
        """The number of the first policy after the genesis; 1 without one."""
        return self.policies[1].number if len(self.policies) > 1 and self.policies[1].purpose == POLICY else 1

    def complete(self, older):
        """Puts the policies that the head does not carry between the genesis and the others."""
        self.policies[1:1] = older

    def log_after(self):
        """The log with the record in it."""
        subtrees = history.append(self.frontier, history.leaf(self.record.data))
        return Log(self.record.log.epoch, self.log_size + 1, history.fold(subtrees))


def head(data):
    if len(data) > 1 << 20:
        raise malformed("a head of more than 1 MiB")
    reader = Reader(data)
    if reader.u16() != 0 or reader.u16() != 0:
        raise unsupported("a head of another format or with incompatible flags")
    policies = [signed(reader) for _ in range(reader.varint(8))]
    record = signed(reader)
    timestamp = signed(reader) if reader.flag() else None
    checkpoint = reader.bytes(16384)
    size, subtrees = frontier(reader)
    later_log = frontier(reader) if reader.flag() else None
    reader.end()
    return Head(policies, record, timestamp, checkpoint, subtrees, size, later_log)


def frontier(reader):
    size = reader.varint()
    bits = [1 << bit for bit in reversed(range(64)) if size >> bit & 1]
    return size, [(bit, reader.take(32)) for bit in bits]


def request(data):
    """Base and root record of a request (statements.md, Request); only its form."""
    if len(data) > (1 << 20) + 262208:
        raise malformed("a request of more than 1 MiB and 262,208 bytes")
    reader = Reader(data)
    if reader.take(8) != b"bullareq":
        raise malformed("no request")
    if reader.u16() != 0 or reader.u16() != 0:
        raise unsupported("a request of another format or with incompatible flags")
    base = head(reader.bytes(1 << 20)) if reader.flag() else signed(reader)
    record = signed(reader)
    if reader.take(32) != digest(data[:-32]):
        raise malformed("the checksum of a request is wrong")
    reader.end()
    return base, record
