"""Runs the vectors of docs/formats: each value in the documents is computed anew and compared."""

import functools
import os
import re
import tempfile

from . import (
    blake3,
    blocks,
    ed25519,
    floor,
    history,
    inode,
    judge,
    note,
    path_proof,
    publisher,
    repository,
    statements,
    trees,
    verdicts,
)
from .encoding import Reader, Refused, byte_string, from_text, number, text, varint

IV = bytes(range(32))
NOW = 1_800_000_000


class Vectors:
    def __init__(self, directory):
        self.directory, self.count = directory, 0

    def page(self, name):
        with open(os.path.join(self.directory, name), encoding="utf-8") as file:
            return file.read()

    def equal(self, what, found, wanted):
        if found != wanted:
            raise Refused("malformed", f"vector {what}: {found!r} instead of {wanted!r}")
        self.count += 1

    def refused(self, what, wanted, check, *arguments):
        """Requires that a check ends with the given verdict."""
        try:
            check(*arguments)
            found = "good"
        except Refused as error:
            found = error.verdict
        self.equal(what, found, wanted)

    def refused_somehow(self, what, check, *arguments):
        try:
            check(*arguments)
        except Refused:
            self.count += 1
        else:
            raise Refused("malformed", f"vector {what}: accepted")


def run(directory):
    """Runs all. Returns how many values were compared."""
    vectors = Vectors(directory)
    for part in PARTS:
        part(vectors)
    return vectors.count


def table(page, *after):
    """The rows of the first table behind some headings, without its head; backticks are removed."""
    for heading in after:
        page = page.split(heading, 1)[1]
    rows = []
    for line in page[page.index("\n|") + 1 :].split("\n"):
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return rows[2:]


def code(page, *after):
    """The lines of the first block of code behind some headings."""
    for heading in after:
        page = page.split(heading, 1)[1]
    return re.search(r"```[a-z]*\n(.*?)```", page, re.DOTALL).group(1).split("\n")[:-1]


def unhex(string):
    return bytes.fromhex(string)


def encodings(vectors):
    page = vectors.page("blocks.md")
    keys = blocks.block_keys(IV)
    for kind, handle in table(page, "## Handle"):
        vectors.equal(f"handle of kind {kind}", blake3.keyed(keys[kind], b"bulla").hex(), handle)
    record = re.search(r"stored raw:\n\n +([0-9a-f]+)", page).group(1)
    handle, frame = blocks.open_record(unhex(record))
    vectors.equal("record", blocks.Blocks(IV, {handle: frame}.get).read("data", handle), b"bulla")
    for frame, verdict, rule in table(page, "Frames that no reader takes"):
        wanted = {"damaged": "bad-frame", "unknown": "unknown-frame"}[verdict]
        vectors.refused(f"frame: {rule}", wanted, blocks.unframe, unhex(frame))
    empty = re.search(r"`(blk1[^`]*)`", page).group(1)
    vectors.equal("text", text("blk", blake3.keyed(keys["data"], b"")), empty)
    vectors.equal("text", from_text("blk", empty), blake3.keyed(keys["data"], b""))


def inodes(vectors):
    page = vectors.page("inode.md")
    wanted = {
        "empty file, 0644, extensions": ("file", 0o644, 0, 0, 0),
        "empty file, 0644, ctime": ("file", 0o644, 0, 0, 0),
        "empty file": ("file", 0o644, 1_700_000_000, 123_456_789, 0),
        "file of": ("file", 0o644, 1_700_000_000, 123_456_789, 1_000_000),
        "file bulla": ("file", 0o644, 1_700_000_000, 123_456_789, 5),
        "directory": ("directory", 0o755, -1, 0, 3),
        "symbolic": ("symbolic link", 0o777, 0, 0, 5),
        "character": ("character device", 0o600, 0, 0, 0),
    }
    rows = table(page, "## Vectors")
    vectors.equal("number of inodes", len(rows), len(wanted))
    for what, data in rows:
        found = inode.decode(unhex(data))
        shown = found.kind, found.mode, found.seconds, found.nanoseconds, found.size()
        vectors.equal(what, shown, next(value for word, value in wanted.items() if what.startswith(word)))
        if "ctime" in what:
            vectors.equal("ctime", found.ctime, (1_700_000_000, 123_456_789))
        if "owner" in what:
            vectors.equal(what, (found.links, found.group, found.owner), (2, b"\xcc" * 16, (1000, 100)))
            vectors.equal(what, found.xattrs, [(b"user.a", b"1")])
        if "device" in what:
            vectors.equal(what, found.device, (1, 3))
    path, group = re.search(r"link group of `(.*?)` under.*?`([0-9a-f]{32})`", page).groups()
    key = blake3.derive("bulla 0 hard-link set", IV)
    vectors.equal("link group", blake3.keyed(key, path.encode())[:16].hex(), group)
    decoders = {"entry": inode.entry, "block": inode.decode}
    for where, data, verdict, rule in table(page, "### What must be refused"):
        vectors.refused(f"inode: {rule}", verdict, decoders[where], runs(data))
    for where, data, rule in table(page, "These are at the bounds"):
        vectors.refused(f"inode: {rule}", "good", decoders[where], runs(data))


def runs(word):
    """Bytes in hexadecimal digits, with `(61 * 257)` for 257 bytes 0x61."""
    return unhex(re.sub(r"\((..) \* (\d+)\)", lambda run: run[1] * int(run[2]), word))


def array_trees(vectors):
    keys = blocks.block_keys(IV)
    data, hole, seal = (5, b"bulla"), (65536, None), (4, b"seal")
    contents = [[data], [hole], [data, hole, seal], [data] * 1000]
    rows = table(vectors.page("trees.md"), "## Array tree")
    vectors.equal("number of arrays", len(rows), len(contents))
    for (what, root, node), extents in zip(rows, contents):
        made, nodes = publisher.array(keys, extents)
        vectors.equal(what, made.hex(), root)
        if node not in ("none", ""):
            vectors.equal(what, nodes[0].hex(), node)
        store = {blake3.keyed(keys["array"], n): b"\2\0" + len(n).to_bytes(4, "little") + n for n in nodes}
        for length, piece in extents:
            if piece:
                store[blake3.keyed(keys["data"], piece)] = b"\1\0" + length.to_bytes(4, "little") + piece
        found = trees.extents(blocks.Blocks(IV, store.get), trees.array_root(Reader(unhex(root))))
        vectors.equal(what, list(found), extents)


def map_trees(vectors):
    keys, page = blocks.block_keys(IV), vectors.page("trees.md")
    for count, salt, root in table(page, "## Map tree", "### Vectors"):
        count, salt = int(count.replace(",", "")), bytes(16) if salt == "zeros" else b"\1" * 16
        entries = [(b"key-%06d" % i, bytes([i % 256]) * (1 + i % 50)) for i in range(count)]
        made, nodes = publisher.map_tree(keys, entries, salt)
        vectors.equal(f"map of {count}", made.hex(), root)
        if count == 2:
            vectors.equal("node", nodes[0].hex(), re.search(r"node of the first is `([0-9a-f]+)`", page).group(1))
        elif salt == bytes(16):
            vectors.equal("nodes", len(nodes), int(re.search(r"second tree has (\d+) nodes", page).group(1)))
        store = {blake3.keyed(keys["map"], n): b"\3\0" + len(n).to_bytes(4, "little") + n for n in nodes}
        source, found = blocks.Blocks(IV, store.get), trees.map_root(Reader(unhex(root)))
        vectors.equal("scan", list(trees.scan(source, found)), entries)
        for key, value in entries[:: count // 2] + [(b"", None), (b"key-000000x", None), (b"z", None)]:
            vectors.equal(f"look-up of {key!r}", trees.lookup(source, found, key), value)


def lines(vectors, name):
    """The records of a file of vectors, divided into fields."""
    found = vectors.page(f"vectors/{name}").split("\n")
    return [line.split(" ") for line in found if line and not line.startswith("#")]


def field(word):
    return b"" if word == "-" else unhex(word)


def ed25519_cases(vectors):
    for verdict, name, key, message, made in lines(vectors, "ed25519.txt"):
        good = ed25519.verify(field(key), field(message), field(made))
        vectors.equal(f"Ed25519 {name}", good, verdict == "good")


def noise(seed, count):
    out, x = bytearray(), seed
    for _ in range(count):
        x ^= x << 13 & 2**64 - 1
        x ^= x >> 7
        x ^= x << 17 & 2**64 - 1
        out.append(x >> 32 & 0xFF | 1)
    return bytes(out)


def described(what):
    """The content that a row of chunking.md describes."""
    what = what.split(":")[0].replace("zero byte", "zeros").replace("nothing", "0 zeros").replace("one", "1")
    out = b""
    for part in re.findall(r"noise\(\d+, \d+\)|[\d,]*\d zeros|[\d,]*\d bytes [0-9a-f]{2}", what):
        numbers = [int(n) for n in re.findall(r"\d+", part.replace(",", "") if "noise" not in part else part)]
        if part.startswith("noise"):
            out += noise(*numbers)
        elif part.endswith("zeros"):
            out += bytes(numbers[0])
        else:
            out += bytes([int(part[-2:], 16)]) * numbers[0]
    return out


def chunks(vectors):
    page = vectors.page("chunking.md")
    vectors.equal("gear", publisher.GEAR, [int(line[0], 16) for line in lines(vectors, "gear.txt")])
    vectors.equal("noise", noise(1, 16).hex(), re.search(r"`noise\(1, 16\)` = `([0-9a-f]+)`", page).group(1))
    for what, extents in table(page, "## Vectors"):
        found = " ".join(str(-length if piece is None else length) for length, piece in publisher.cut(described(what)))
        vectors.equal(what, found, extents)


OWNER, PUBLISHER, WITNESS = (bytes([seed]) * 32 for seed in (0x01, 0x02, 0x14))


def signature(seed, statement):
    """One signature of a statement, as a signed statement has it."""
    key, made = ed25519.sign(seed, statements.SIGNING + statement)
    return b"\1" + byte_string(key) + byte_string(made)


def signed(statement, *seeds):
    signatures = sorted(signature(seed, statement) for seed in seeds)
    return byte_string(statement) + varint(len(signatures)) + b"".join(signatures)


def named(vectors):
    """The named values of statements.md."""
    shown = code(vectors.page("statements.md"), "## Vectors")
    return dict(line.split() for line in shown)


def role(seed):
    return b"\1\1\1\x20" + ed25519.sign(seed, b"")[0]


def written(volume, log_after, record_hash):
    """Genesis, record, timestamp and successor as the page describes them."""
    week, begin = 604800, bytes(2)
    roles = role(OWNER) + role(PUBLISHER) + number(31_622_400) + bytes(2) + number(0) + bytes(4)
    policy = begin + b"\1" + bytes(4)
    genesis = policy + bytes(32) + number(0) + number(2**64 - 1) + roles
    genesis += byte_string(b"world") + b"\7" * 32 + b"\1" + b"\x09" * 32 + b"\0"
    first = history.leaf(genesis)
    record = begin + b"\2" + bytes(4) + volume + number(1) + number(NOW) + number(week) + b"\1" * 32
    record += b"".join(map(number, (2, 3, 4, 5))) + number(0) + volume + number(0) + number(1) + first + b"\0\0"
    stamp = begin + b"\3" + bytes(4) + volume + record_hash + number(0) + volume + number(NOW) + number(NOW + 3600)
    last = number(1) + record_hash + number(0) + number(2) + log_after
    successor = policy + volume + number(1) + number(2**64 - 1) + roles + volume + number(0) + b"\1" + last + b"\0"
    return {"genesis": genesis, "record": record, "timestamp": stamp + b"\0", "successor": successor}


def signed_statements(vectors):
    values = named(vectors)
    genesis, record = unhex(values["genesis"]), unhex(values["record"])
    volume, record_hash = unhex(values["genesis.hash"]), unhex(values["record.hash"])
    for name, data in written(volume, unhex(values["log.after"]), record_hash).items():
        vectors.equal(name, data.hex(), values[name])
        vectors.equal(f"{name}.hash", statements.statement(data).hash.hex(), values[f"{name}.hash"])
    vectors.equal("volume", text("vol", volume), values["volume"])
    for name, seed in (("genesis", OWNER), ("record", PUBLISHER)):
        vectors.equal(
            f"{name}.signature", signature(seed, unhex(values[name]))[-64:].hex(), values[f"{name}.signature"]
        )
    made = signed(genesis, OWNER), signed(record, PUBLISHER)
    vectors.equal("record.signed", blake3.hash(made[1]).hex(), values["record.signed"])
    head = bytes(4) + b"\1" + made[0] + made[1] + bytes(2) + b"\1" + history.leaf(genesis) + b"\0"
    vectors.equal("head", blake3.hash(head).hex(), values["head.blake3"])
    known = bytes(2) + volume + number(NOW) + b"\1" + made[0] + b"\1" + number(1) + record_hash
    known += number(0) + number(2) + unhex(values["log.after"]) + b"\1" + b"\1" * 32 + bytes(3)
    known += blake3.hash(known)
    vectors.equal("floor", blake3.hash(known).hex(), values["floor.blake3"])
    request = b"bullareq" + bytes(5) + signed(genesis) + signed(record)
    vectors.equal("request", blake3.hash(request + blake3.hash(request)).hex(), values["request.blake3"])
    after = number(0) + number(2) + unhex(values["log.after"])
    second = record[:39] + number(2) + record[47:63] + b"\2" * 32 + record[95:167] + after + b"\0\0"
    later = b"bullareq" + bytes(4) + b"\1" + byte_string(head) + signed(second, PUBLISHER)
    vectors.equal("later", blake3.hash(later + blake3.hash(later)).hex(), values["later.blake3"])
    judged(vectors, head, known, volume)


def judged(vectors, data, known, volume):
    """The head of the page, judged by readers at different times."""
    head, empty, later = statements.head(data), floor.Floor(volume), floor.Floor(volume, NOW + 604800)
    for what, now, wanted in (
        ("in time", NOW, "good"),
        ("ten minutes early", NOW - 600, "good"),
        ("too early", NOW - 601, "not-yet-valid"),
        ("the last second", NOW + 604799, "good"),
        ("too late", NOW + 604800, "expired"),
    ):
        vectors.refused(what, wanted, judge.judge, head, empty, judge.Reader(now))
    vectors.refused("adopted", "good", judge.judge, head, floor.floor(known), judge.Reader(NOW))
    vectors.refused("a floor's time", "expired", judge.judge, head, later, judge.Reader(NOW))
    for place in range(0, len(data), 5):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        vectors.refused_somehow(f"byte {place} of a head changed", judge_bytes, changed, empty, judge.Reader(NOW))


def judge_bytes(data, known, reader):
    return judge.judge(statements.head(data), known, reader)


def log_tiles(vectors):
    values = named(vectors)
    leaves = [history.leaf(unhex(values[name])) for name in ("genesis", "record")]
    vectors.equal("log.after", history.fold(history.frontier(leaves)).hex(), values["log.after"])
    vectors.equal("tile.0.0.2", b"".join(history.tiles(leaves)[0, 0]).hex(), values["tile.0.0.2"])
    leaves = [history.leaf(b"%d" % i) for i in range(600)]
    tiles = history.tiles(leaves)
    vectors.equal("tile.1.0.2", b"".join(tiles[1, 0]).hex(), values["tile.1.0.2"])
    for new in (1, 2, 3, 255, 256, 257, 511, 512, 513, 600):
        subtrees, made = history.frontier(leaves[:new]), history.tiles(leaves[:new])
        tile = functools.partial(tile_of, made)
        for old in sorted({0, 1, 2, 3, 100, 255, 256, 257, 300, 512, 513, new - 1, new} & set(range(new + 1))):
            log = statements.Log(0, old, history.fold(history.frontier(leaves[:old])))
            vectors.refused(f"{old} to {new}", "good", history.begins, log, new, subtrees, tile)
            wrong = statements.Log(0, old, bytes(32))
            vectors.refused(f"{old} to {new}", "fork", history.begins, wrong, new, subtrees, tile)


def tile_of(made, level, index, count):
    return made[level, index][:count]


def checkpoints(vectors):
    page, volume = vectors.page("statements.md"), named(vectors)["volume"]
    shown = code(page, "The publisher's note")
    found = note.Note("\n".join(shown + [""]).encode())
    origin = f"bulla/{volume}/0"
    vectors.equal("origin", found.text.split("\n")[0], origin)
    name, key = "witness.example/20", ed25519.sign(WITNESS, b"")[0]
    vectors.equal("witness", found.witnesses([key]), {key})
    vectors.equal("witness's name", shown[-1].split(" ")[1], name)
    key, made = ed25519.sign(PUBLISHER, found.text.encode())
    line = note.line(origin, note.key_id(origin, 1, key) + made)
    vectors.equal("the log's line", line, shown[-2])


def proofs(vectors):
    page, values = vectors.page("path-proof.md"), named(vectors)
    proof, volume = unhex(code(page, "## Vector")[0]), unhex(values["genesis.hash"])
    check = path_proof.check
    vectors.refused("proof", "not-found", check, proof, volume, b"seal", NOW)
    vectors.refused("another path", "malformed", check, proof, volume, b"sea", NOW)
    vectors.refused("too late", "expired", check, proof, volume, b"seal", NOW + 604800)
    vectors.refused("too early", "not-yet-valid", check, proof, volume, b"seal", NOW - 601)
    vectors.refused("another policy", "rollback", check, proof, volume, b"seal", NOW, 1)
    vectors.refused("another volume", "wrong-volume", check, proof, bytes(32), b"seal", NOW)
    for place in range(0, len(proof), 5):
        changed = proof[:place] + bytes([proof[place] ^ 1]) + proof[place + 1 :]
        vectors.equal(f"byte {place} changed", believed(changed, volume), False)


def believed(proof, volume):
    """Whether a proof shows anything about the path `seal`."""
    try:
        path_proof.check(proof, volume, b"seal", NOW)
    except Refused as error:
        return error.verdict == "not-found"
    return True


def repositories(vectors):
    """The repository of repository.md: its head is read, then both blocks."""
    page = vectors.page("repository.md").split("## Vector", 1)[1]
    parts = ["".join(code("```".join([""] + page.split("```")[i : i + 2] + [""]))) for i in (1, 3, 5)]
    zeros = {"(36 zero bytes)": "00" * 36, "(4004 zero bytes)": "00" * 4004}
    data = []
    for part in parts:
        for words, hexadecimal in zeros.items():
            part = part.replace(words, hexadecimal)
        data.append(unhex(part.replace(" ", "")))
    segment, run, head = data
    ids = "c9f9c7c460d98e328e3cd910fa277d3f", "5cca301f81cd531b39503f9075923c2c"
    files = {
        "bulla": b"bulla repository\nformat 0\nincompatible\nreadonly-compatible\ncompatible\n",
        "head": head,
        f"segments/{ids[0]}.seg": segment,
        f"index/{ids[1]}.idx": run,
    }
    with tempfile.TemporaryDirectory() as directory:
        for name, content in files.items():
            os.makedirs(os.path.dirname(os.path.join(directory, name)), exist_ok=True)
            with open(os.path.join(directory, name), "wb") as file:
                file.write(content)
        found = repository.Repository(directory)
        vectors.equal("statements", found.statements, b"statements")
        source = blocks.Blocks(bytes(32), found.frame)
        vectors.equal("records", found.check_segments(source.keys), 2)
        read = sorted((kind, source.read(kind, handle)) for kind, handle in zip(("map", "data"), sorted(found.index)))
        vectors.equal("blocks", read, [("data", b"who closes the clay\n"), ("map", b"may carry it\n")])


def judgements(vectors):
    verdicts.judgements(vectors, lines(vectors, "judgements.txt"))


def refusals(vectors):
    verdicts.structures(vectors, lines(vectors, "refused.txt"))


PARTS = (
    encodings,
    inodes,
    array_trees,
    map_trees,
    chunks,
    ed25519_cases,
    signed_statements,
    log_tiles,
    checkpoints,
    proofs,
    repositories,
    judgements,
    refusals,
)
