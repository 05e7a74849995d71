"""Runs vectors/judgements.txt and vectors/refused.txt, whose first lines say what their records mean."""

from dataclasses import dataclass, field

from . import blocks, history, inode, judge, note, path_proof, rounds, statements, trees
from . import floor as floors
from .encoding import Reader, Refused, from_text, malformed, refusing


@dataclass
class Case:
    name: str
    given: dict = field(default_factory=dict)
    judged: list = field(default_factory=list)
    adopted: list = field(default_factory=list)
    after: str = ""


def cases(records, named):
    """Gathers the cases of a file; bytes that have a name go into `named`."""
    case = None
    for word, *rest in records:
        if word in ("head", "floor"):
            named[rest[0]] = spelled(rest[1])
        elif word == "case":
            if case:
                yield case
            case = Case(rest[0])
        elif word in ("judge", "adopt"):
            (case.judged if word == "judge" else case.adopted).append(rest)
        elif word == "after":
            case.after = rest[0]
        else:
            case.given[word] = rest
    yield case


def spelled(word):
    """Bytes as hexadecimal digits and runs `HH*N`, joined by `+`; `-` is none."""
    out = b""
    for part in word.split("+") if word != "-" else []:
        digits, _, times = part.partition("*")
        out += bytes.fromhex(digits) * int(times or 1)
    return out


def judgements(vectors, records):
    named = {}
    for case in list(cases(records, named)):
        run(vectors, case, named)


def reader(given):
    how, *values = given["freshness"]
    pin = given["policy-pin"][0]
    return judge.Reader(
        wall=int(given["wall"][0]),
        kept=int(given["now"][0]),
        grace=int(values[0]) if how == "grace" else 0,
        pinned=(int(values[0]), bytes.fromhex(values[1])) if how == "pinned" else None,
        policy_pin=None if pin == "-" else bytes.fromhex(pin),
    )


def run(vectors, case, named):
    asker, before = reader(case.given), floors.floor(named[case.given["before"][0]])
    vectors.equal(f"{case.name}: volume", before.volume.hex(), case.given["volume"][0])
    heads = [statements.head(named[name]) for name, *_ in case.judged]
    results, after = rounds.judge_together(heads, before, asker)
    for (name, *wanted), found in zip(case.judged, results):
        vectors.equal(f"{case.name}: {name}", shown(found), wanted)
    vectors.equal(f"{case.name}: the floor", after.encode().hex(), named[case.after].hex())
    good = {name: found for (name, *_), found in zip(case.judged, results) if not isinstance(found, Refused)}
    vectors.equal(f"{case.name}: to adopt", [name for name, *_ in case.adopted], list(good))
    for name, verdict, *stored in case.adopted:
        adopted = rounds.attempt(rounds.adopt, good[name], after, asker)
        if isinstance(adopted, Refused):
            vectors.equal(f"{case.name}: adopting {name}", [adopted.verdict], [verdict, *stored])
        else:
            vectors.equal(f"{case.name}: adopting {name}", [adopted.encode()], [named[name] for name in stored])


def shown(found):
    if isinstance(found, Refused):
        return [found.verdict]
    return ["good", str(found.until), "stale" if found.stale else "fresh"]


# vectors/refused.txt


class Context:
    """What the first records of the file say: the volume, its time and its witnesses."""

    def __init__(self, records):
        found = {word: bytes.fromhex(value) for word, value, *_ in records if word in ("volume", "iv-of-blocks")}
        self.volume, self.keys = found["volume"], blocks.block_keys(found["iv-of-blocks"])
        self.iv = found["iv-of-blocks"]
        self.time = next(int(value) for word, value, *_ in records if word == "time")
        keys = [bytes.fromhex(value) for word, value, *_ in records if word == "witness"]
        self.witnesses = tuple(sorted((1, key) for key in keys))


def structures(vectors, records):
    context = Context(records)
    for structure, verdict, *rest in records:
        if structure in CHECKS:
            name, data, given = rest[0], spelled(rest[1]), (rest[2].split(",") if len(rest) > 2 else [])
            vectors.refused(f"{structure} {name}", verdict, CHECKS[structure], context, data, *given)


def whole(decode):
    """A check of bytes that have no other rule than their form."""

    def check(context, data):
        reader = Reader(data)
        decode(reader)
        reader.end()

    return check


def check_statement(context, data):
    found = statements.statement(data)
    genesis = found.purpose == statements.POLICY and found.number == 0
    if found.volume != (bytes(32) if genesis else context.volume):
        raise Refused("wrong-volume", "another volume")


def check_record(context, data):
    handle, frame = blocks.open_record(data)
    blocks.Blocks(context.iv, {handle: frame}.get).read("data", handle)


def check_array(context, data, level, length):
    with refusing("bad-tree"):
        trees.array_children(data, int(level), int(length))


def check_map(context, data, level, entries, low, high):
    bounds = [None if word == "-" else bytes.fromhex(word) for word in (low, high)]
    with refusing("bad-tree"):
        trees.map_entries(data, trees.MapNode(None, int(level), int(entries), *bounds))


def check_proof(context, data, path="-"):
    try:
        path_proof.check(data, context.volume, spelled(path), context.time)
    except Refused as error:
        if error.verdict != "not-found":
            raise


def check_note(context, data, size, root, quorum):
    log, role = statements.Log(0, int(size), bytes.fromhex(root)), statements.Role(int(quorum), context.witnesses)
    note.Note(data).check(context.volume, log, role)


def check_tile(context, data, size, root, newer):
    old, (new, subtrees) = (
        statements.Log(0, int(size), bytes.fromhex(root)),
        statements.frontier(Reader(spelled(newer))),
    )
    history.begins(old, new, subtrees, lambda level, index, count: history.tile_hashes(data, count))


def check_text(context, data, prefix):
    try:
        from_text(prefix, data.decode("ascii"))
    except UnicodeDecodeError as error:
        raise malformed("text that is not ASCII") from error


CHECKS = {
    "statement": check_statement,
    "signed": whole(statements.signed),
    "head": lambda context, data: statements.head(data),
    "floor": lambda context, data: floors.floor(data),
    "request": lambda context, data: statements.request(data),
    "record": check_record,
    "array": check_array,
    "map": check_map,
    "array-root": whole(trees.array_root),
    "map-root": whole(trees.map_root),
    "inode": lambda context, data: inode.decode(data),
    "entry": lambda context, data: inode.entry(data),
    "xattrs": lambda context, data: inode.xattr_list(data),
    "path-proof": check_proof,
    "checkpoint": check_note,
    "tile": check_tile,
    "text": check_text,
}
