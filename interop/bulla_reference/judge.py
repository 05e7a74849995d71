"""What a reader believes of one head (docs/formats/verification.md, sections 3 to 8 and 15)."""

from dataclasses import dataclass
from typing import Optional

from . import history
from .encoding import Refused, malformed, text
from .floor import Adopted
from .note import Note
from .statements import NEVER, POLICY, ROOT, TIMESTAMP, Head, Log

AHEAD = 600  # seconds that a start may lie in the future


@dataclass
class Judged:
    """A head that may be believed. If `grown` is a log, it must still be shown to begin the record's LOG."""

    head: Head
    policies: list
    log: Log
    subtrees: list
    until: int
    stale: bool  # believed only because of a grace
    grown: Optional[Log]


def not_signed(why):
    return Refused("not-signed", why)


def check_purpose(statement, volume, purpose):
    if statement.volume != volume:
        raise Refused("wrong-volume", "a statement of another volume")
    if statement.purpose != purpose:
        raise malformed(f"a statement of purpose {statement.purpose} instead of {purpose}")


# Section 3.


def check_chain(policies, volume):
    """The rules of a chain by itself."""
    if not policies:
        raise malformed("no policy")
    genesis = policies[0]
    if genesis.hash != volume:
        raise Refused("wrong-volume", f"this is {text('vol', genesis.hash)}")
    check_purpose(genesis, bytes(32), POLICY)
    if genesis.number != 0:
        raise malformed("the first policy is no genesis")
    genesis.require(genesis.owners, "owners")
    if len(policies) > 1 and policies[1].purpose == POLICY and policies[1].number > 1:
        raise Refused("policies-missing", f"the policies between the genesis and policy {policies[1].number}")
    for before, policy in zip(policies, policies[1:]):
        check_successor(before, policy, volume)


def check_successor(before, policy, volume):
    check_purpose(policy, volume, POLICY)
    if policy.number == 0 or policy.number != before.number + 1:
        raise malformed(f"policy {policy.number} follows policy {before.number}")
    if policy.previous != before.hash:
        raise malformed(f"policy {policy.number} follows another one")
    if before.revoked:
        raise malformed("a policy follows a revocation")
    if before.last and not policy.last:
        raise malformed(f"policy {policy.number} names no last record any more")
    if policy.epoch - before.epoch not in (0, 1):
        raise malformed(f"epoch {policy.epoch} follows epoch {before.epoch}")
    policy.require(before.owners, "owners of the policy before")
    policy.require(policy.owners, "owners")


def join_chains(offered, floor):
    """The longer one of the offered and the known chain, where none contradicts the other."""
    if any(policy.hash in floor.refused for policy in offered):
        raise Refused("refused", "a policy that the user refused")
    known = floor.policies
    for place, (ours, theirs) in enumerate(zip(known, offered)):
        if ours.hash != theirs.hash:
            if theirs.revoked and not ours.revoked:
                raise not_signed("a revocation in the place of a known policy")
            newest = place == len(known) - 1
            raise Refused("fork" if newest else "stray-policy", f"two policies with the number {ours.number}")
    if len(offered) > len(known) and floor.policy_fork:
        raise Refused("fork", "a policy beyond a fork that is not settled")
    return offered if len(offered) > len(known) else known


# Sections 4 to 7.


@dataclass
class Reader:
    """Who reads: the clocks, and what the user demands."""

    wall: int
    kept: int = 0  # a later time that this reader has seen
    grace: int = 0
    pinned: Optional[tuple] = None  # version and record hash
    policy_pin: Optional[bytes] = None
    least_policy: int = 0


def judge(head, floor, reader):
    """Judges one head."""
    check_chain(head.policies, floor.volume)
    chain = join_chains(head.policies, floor)
    check_newest(chain, reader)
    check_record(head.record, chain, floor.volume, oldest_carried(chain))
    subtrees = check_frontier(head)
    after = head.log_after()
    if reader.pinned:
        if reader.pinned != (head.record.version, head.record.hash):
            raise Refused("not-pinned", "another record than the pinned one")
        return Judged(head, chain, after, subtrees, NEVER, False, None)
    if head.record.hash in floor.refused:
        raise Refused("refused", "a record that the user refused")
    grown = check_floor(head, chain, floor)
    check_timestamp(head, chain)
    check_witnesses(head, chain[-1], floor.volume, after)
    until, stale = check_time(head, chain, floor, reader)
    return Judged(head, chain, after, subtrees, until, stale, grown)


def check_newest(chain, reader):
    newest = chain[-1]
    if reader.policy_pin and all(policy.hash != reader.policy_pin for policy in chain):
        raise Refused("not-pinned", "the chain does not have the pinned policy")
    if newest.number < reader.least_policy:
        raise Refused("rollback", f"policy {newest.number} is older than policy {reader.least_policy}")
    if newest.revoked:
        raise Refused("revoked", "the owners ended this volume" + recommended(newest))


def recommended(policy):
    return f" and recommend {text('vol', policy.successor)}" if policy.successor else ""


def check_record(record, chain, volume, oldest=0):
    """Section 4, but for the frontier. Policies before `oldest` are carried by no head."""
    check_purpose(record, volume, ROOT)
    number, hash = record.policy
    if number < oldest:
        if chain[-1].last and chain[-1].last[1] == record.hash:
            return  # the owners vouch for it
        raise Refused("superseded", f"the record is under policy {number}, which no head carries any more")
    policy = chain[number] if number < len(chain) else None
    if policy is None or policy.hash != hash:
        raise not_signed("the record names a policy that is not in the chain")
    if record.log.epoch != policy.epoch:
        raise not_signed(f"the record's log is of epoch {record.log.epoch} and its policy's of {policy.epoch}")
    record.require(policy.publishers, "publishers")
    if record.duration > policy.record_maximum:
        raise not_signed("the record lasts longer than its policy permits")


def oldest_carried(chain):
    """The lowest number from which on a head carries all policies of this chain."""
    return 0 if len(chain) <= 8 else len(chain) - 7


def check_frontier(head):
    """The end of section 4. Returns the perfect subtrees of the log after the record."""
    record = head.record
    if head.log_size != record.log.size or history.fold(head.frontier) != record.log.root:
        raise malformed("the frontier is not that of the record's log")
    if record.log.size == NEVER:
        raise malformed("the record's log is full")
    return history.append(head.frontier, history.leaf(record.data))


def floor_under(chain, floor):
    """Section 5: the adopted record that holds under a chain."""
    adopted = floor.adopted
    for policy in chain[len(floor.policies) :]:
        if policy.last and (adopted is None or policy.last[0] >= adopted.version or policy.lowers):
            root = adopted.root if adopted and adopted.record == policy.last[1] else None
            adopted = Adopted(*policy.last, root)
    return adopted


def check_floor(head, chain, floor):
    """Section 5. Returns the log that must begin the record's, if the record is newer than the adopted one."""
    record, adopted = head.record, floor_under(chain, floor)
    if adopted and record.version < adopted.version:
        raise Refused("rollback", f"version {record.version} is older than version {adopted.version}")
    known = len(head.policies) < len(chain)
    either(known, lambda: counts(record, chain), lambda: counts(record, head.policies))
    if adopted is None:
        check_forks(floor)
        return None
    if record.version == adopted.version:
        if record.hash != adopted.record:
            raise Refused("fork", f"two records of version {record.version}")
        return None
    grown = adopted.log if adopted.log.epoch == record.log.epoch else None
    if adopted.log.epoch > record.log.epoch:
        raise Refused("fork", "the record's log is of an older epoch than the adopted one")
    if grown:
        grown = unproved(grown, record.log.size, head.frontier)
    check_forks(floor)
    return grown


def unproved(old, new, subtrees):
    """The log `old`, or None if it evidently begins the log of `new` leaves. Refuses it where it evidently does not."""
    try:
        history.begins(old, new, subtrees, no_tile)
    except Refused as error:
        if error.verdict == "unproved":
            return old
        raise
    return None


def no_tile(level, index, count):
    raise Refused("unproved", f"tile {level}.{index} is wanted")


def check_forks(floor):
    if floor.record_fork or floor.policy_fork:
        raise Refused("fork", "a fork is not settled")


def either(known, now, then):
    """Runs the check `now`. Where it fails, the head shows fewer policies than are known and the check `then` under
    the head's own policies is good, the head is only old."""
    try:
        now()
    except Refused as error:
        if not known:
            raise
        try:
            then()
        except Refused:
            raise error from None
        raise Refused("superseded", f"good under older policies only: {error}") from error


def counts(record, chain):
    newest, (number, _) = chain[-1], record.policy
    if number == newest.number or (newest.last and newest.last[1] == record.hash):
        return
    for policy in chain[number + 1 :]:
        if policy.last and policy.last[1] != record.hash and (policy.lowers or policy.last[0] == record.version):
            raise not_signed(f"policy {policy.number} discards this record")
    record.require(newest.publishers, "publishers of the newest policy")


def check_timestamp(head, chain):
    """Section 6."""
    known = len(head.policies) < len(chain)
    either(known, lambda: timestamp_under(head, chain[-1]), lambda: timestamp_under(head, head.policies[-1]))


def timestamp_under(head, newest):
    stamp = head.timestamp
    if not newest.timestamps.keys:
        return
    if stamp is None:
        raise not_signed("there is no timestamp")
    check_purpose(stamp, head.record.volume, TIMESTAMP)
    if stamp.record != head.record.hash or stamp.policy != (newest.number, newest.hash):
        raise not_signed("the timestamp is one of another record or policy")
    if not 0 <= stamp.until - stamp.issued <= newest.timestamp_maximum:
        raise not_signed("the timestamp lasts longer than its policy permits")
    stamp.require(newest.timestamps, "timestamp keys")


def check_witnesses(head, newest, volume, after):
    if newest.witnesses.needed == 0:
        return
    if not head.checkpoint:
        raise not_signed("there is no checkpoint")
    Note(head.checkpoint).check(volume, after, newest.witnesses)


def newest_start(chain, floor, wall):
    """The newest start that holds under a chain: a policy that is new to the reader may lower it."""
    if any(policy.lowers for policy in chain[len(floor.policies) :]):
        return min(floor.newest_start, wall + AHEAD)
    return floor.newest_start


def check_time(head, chain, floor, reader):
    """Section 7. Returns until when the head may be believed, and whether that takes a grace."""
    record, newest = head.record, chain[-1]
    now = max(reader.wall, reader.kept, newest_start(chain, floor, reader.wall))
    stamp = head.timestamp if newest.timestamps.keys else None
    if record.start > now + AHEAD or (stamp and stamp.issued > now + AHEAD):
        raise Refused("not-yet-valid", f"valid from {record.start} on, and now is {now}")
    until = min(record.start + record.duration, record.start + newest.record_maximum, NEVER)
    if stamp:
        until = min(until, stamp.until)
    late = min(until + reader.grace, newest.not_after, NEVER)
    if now >= late:
        raise Refused("expired", f"valid until {late}, and now is {now}")
    return late, now >= until


def check_earlier(leaf, judged, volume):
    """Section 15: a leaf of the log that the judged head names. Its place in the log is not checked here."""
    if leaf.purpose == POLICY:
        if all(policy.hash != leaf.hash for policy in judged.policies):
            raise not_signed("a policy that is not in the chain")
    else:
        check_record(leaf, judged.policies, volume)
        if leaf.hash != judged.head.record.hash and leaf.version >= judged.head.record.version:
            raise not_signed(f"an earlier record of version {leaf.version}")


# Section 8.


def check_growth(judged, tile):
    """Shows from tiles that the adopted log begins the record's."""
    if judged.grown is not None:
        history.begins(judged.grown, judged.head.record.log.size, judged.head.frontier, tile)
