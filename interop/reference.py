#!/usr/bin/env python3
"""Verifies bulla's volumes independently of bulla: see README.md beside this file."""

import argparse
import os
import sys
import time

from bulla_reference import blocks, history, judge, path_proof, repository, statements, vectors
from bulla_reference.encoding import Reader, Refused, from_text, malformed, refusing, text, unavailable
from bulla_reference.floor import Floor
from bulla_reference.volume import Tree


class Volume:
    """The newest version in a repository, judged."""

    def __init__(self, path, volume, now):
        self.volume, self.repository = volume, repository.Repository(path)
        if not self.repository.statements:
            raise unavailable("no version was published here yet")
        self.head = statements.head(self.repository.statements)
        self.head.complete([self.policy(number) for number in range(1, self.head.begins())])
        self.judged = judge.judge(self.head, Floor(volume), judge.Reader(now))
        judge.check_growth(self.judged, self.tile)
        genesis = self.judged.policies[0]
        self.blocks = blocks.Blocks(genesis.iv, self.repository.frame)
        with refusing("bad-tree"):
            self.tree = Tree(self.blocks, self.head.record.root)

    def policy(self, number):
        """A policy that the head does not carry."""
        reader = Reader(self.repository.read(f"policies/{number}", 262144))
        policy = statements.signed(reader)
        reader.end()
        return policy

    def tile(self, level, index, count):
        """The first `count` hashes of a tile. Only the whole tile, or the longest one, must be there."""
        name = f"log/{self.judged.log.epoch}/tiles/{level}.{index}"
        size = self.judged.log.size // 256**level - 256 * index
        whole = name if size >= 256 else f"{name}.{size}"
        try:
            data = self.repository.read(whole, 256 * 32)
        except Refused:
            data = self.repository.read(name, 256 * 32)
        return history.tile_hashes(data, count)

    def check_log(self):
        """Tiles and leaves of the record's log: each is part of it, and each record's log begins it. Returns how many
        leaves are there; a pruned repository need not have them all."""
        log = self.judged.log
        found = {(level, index): self.tile(level, index, count) for level, index, count in history.tile_names(log.size)}
        leaves = [hash for (level, _), hashes in found.items() if level == 0 for hash in hashes]
        if history.fold(history.frontier(leaves)) != log.root:
            raise Refused("bad-history", "the tiles do not come to the root of the log")
        if history.tiles(leaves) != found:
            raise Refused("bad-history", "a tile is not made of those below it")
        return sum(self.check_leaf(leaves, number) for number in range(log.size))

    def check_leaf(self, hashes, number):
        name = f"log/{self.judged.log.epoch}/{number}"
        try:
            data = self.repository.read(name, 262144)
        except Refused as error:
            if error.verdict != "unavailable":
                raise
            return 0
        with refusing("bad-history", name):
            if history.leaf(Reader(data).bytes(131072)) != hashes[number]:
                raise malformed("this leaf is not the one of the log")
            reader = Reader(data)
            leaf = statements.signed(reader)
            reader.end()
            judge.check_earlier(leaf, self.judged, self.volume)
            if leaf.purpose == statements.ROOT:
                if leaf.log.size != number or leaf.log.epoch != self.judged.log.epoch:
                    raise malformed("a record that names another place in the log than its own")
                judged = self.judged
                history.begins(leaf.log, judged.log.size, judged.subtrees, self.tile)
        return 1


def verify(args):
    volume = Volume(args.repository, from_text("vol", args.volume), args.now)
    leaves = volume.check_log()
    with refusing("bad-tree"):
        found = volume.tree.walk().totals()
    if found != volume.head.record.totals:
        raise Refused("bad-tree", f"the tree has {found} and its record says {volume.head.record.totals}")
    records = volume.repository.check_segments(volume.blocks.keys)
    print(
        f"ok: version {volume.head.record.version}, {text('rec', volume.head.record.hash)}, {found[0]} files, "
        f"{found[1]} directories, {found[2]} others, {found[3]} bytes; {leaves} of {volume.judged.log.size} leaves, "
        f"{records} records; until {volume.judged.until}"
    )


def extract(args):
    volume = Volume(args.repository, from_text("vol", args.volume), args.now)
    with refusing("bad-tree"):
        found = volume.tree.find(path_proof.names(os.fsencode(args.path)))
        for piece in volume.tree.content(found):
            sys.stdout.buffer.write(piece)


def absent(args):
    with open(args.proof, "rb") as file:
        proof = file.read((16 << 20) + 1)
    volume, path = from_text("vol", args.volume), os.fsencode(args.path)
    found = path_proof.check(proof, volume, path, args.now, args.policy)
    print(f"present: {found.kind}, mode {found.mode:04o}, size {found.size()}")


def run_vectors(args):
    print(f"ok: {vectors.run(args.formats)} vectors")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--now", type=int, default=int(time.time()), help="the time, in seconds since 1970")
    commands = parser.add_subparsers(required=True)
    for name, run, takes in (
        ("verify", verify, ("repository", "volume")),
        ("extract", extract, ("repository", "volume", "path")),
        ("absent", absent, ("proof", "volume", "path")),
        ("vectors", run_vectors, ("formats",)),
    ):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        for argument in takes:
            command.add_argument(argument)
        if name == "absent":
            command.add_argument("--policy", type=int, default=0, help="the least policy that is accepted")
    return parser.parse_args()


def main():
    sys.setrecursionlimit(20000)
    args = arguments()
    try:
        args.run(args)
    except Refused as error:
        print(f"refused: {error.verdict}: {error}", file=sys.stderr)
        return error.exit_code()
    return 0


if __name__ == "__main__":
    sys.exit(main())
