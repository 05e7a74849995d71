"""Proofs for paths (docs/formats/path-proof.md): that a path is in a volume, or that it is not, without a network."""

from . import blake3, blocks, inode, statements
from .encoding import Reader, Refused, malformed, not_found, unsupported
from .floor import Floor
from .judge import Reader as Asker
from .judge import judge, oldest_carried
from .note import Note
from .volume import Tree


class InOrder(blocks.Blocks):
    """The blocks of a proof, which come in the order in which a reader wants them."""

    def __init__(self, iv, plaintexts):
        super().__init__(iv, None)
        self.waiting = list(plaintexts)

    def read(self, kind, handle):
        if not self.waiting:
            raise malformed("the proof ends before the path does")
        plaintext = self.waiting.pop(0)
        if blake3.keyed(self.keys[kind], plaintext) != handle:
            raise Refused("wrong-block", f"the proof has another block than {handle.hex()}")
        return plaintext


def names(path):
    """The names of a path; none for the root."""
    parts = path.split(b"/") if path else []
    if len(parts) > 256 or not all(inode.is_name(part) for part in parts):
        raise malformed("a path that no volume can have")
    return parts


def check(proof, volume, path, now, least_policy=0):
    """The inode at the path. Refuses as not-found where the proof shows that nothing is there."""
    if len(proof) > 16 << 20:
        raise malformed("a proof of more than 16 MiB")
    reader = Reader(proof)
    if reader.u16() != 0 or reader.u16() != 0:
        raise unsupported("a proof of another format or with incompatible flags")
    about = reader.bytes(256 * 256)
    parts = names(about)
    head = statements.head(reader.bytes(1 << 20))
    older = [statements.signed(reader) for _ in range(reader.varint(65536))]
    plaintexts = [reader.bytes(65536) for _ in range(reader.varint(reader.left()))]
    reader.end()
    if len(older) != head.begins() - 1:
        raise malformed("not the policies between the genesis and the others of the head")
    head.complete(older)
    if about != path:
        raise malformed(f"the proof is about {about!r}")
    judge(head, Floor(volume), Asker(now, least_policy=least_policy))
    check_surplus(head)
    on_the_way = InOrder(head.policies[0].iv, plaintexts)
    missing = None
    try:
        found = Tree(on_the_way, head.record.root).find(parts)
    except Refused as error:
        if error.verdict != "not-found":
            raise
        missing = error
    if on_the_way.waiting:
        raise malformed(f"the proof has {len(on_the_way.waiting)} blocks too many")
    if missing:
        raise not_found(str(missing))
    return found


def check_surplus(head):
    """The head has no byte that no check covers."""
    newest, before = head.policies[-1], None
    for policy in head.policies:
        only(policy, policy.owners, *([before.owners] if before else []))
        before = policy
    if head.record.policy[0] >= oldest_carried(head.policies):
        only(head.record, head.policies[head.record.policy[0]].publishers, newest.publishers)
    if head.timestamp:
        if not newest.timestamps.keys:
            raise malformed("a timestamp that nobody asked for")
        only(head.timestamp, newest.timestamps)
    if head.checkpoint:
        keys = newest.witnesses.usable()
        if newest.witnesses.needed == 0:
            raise malformed("a checkpoint that nobody asked for")
        note = Note(head.checkpoint)
        if len(note.signatures.split("\n")) != len(note.witnesses(keys)) + 1 or not note.signatures.endswith("\n"):
            raise malformed("a checkpoint with other lines than one of each witness")


def only(statement, *roles):
    keys = {key for role in roles for key in role.keys}
    if any(signer not in keys for signer, _ in statement.signatures):
        raise malformed("a signature that nobody asked for")
