"""The heads that several mirrors show, judged together, and what a reader records (docs/formats/verification.md,
sections 9 and 10)."""

from dataclasses import replace

from .encoding import Refused
from .floor import Adopted
from .judge import AHEAD, check_chain, check_forks, floor_under, judge, newest_start, unproved


def judge_together(heads, floor, reader):
    """Returns for each head what `judge` returns or raises, and the floor that comes of it."""
    if reader.pinned:
        return [attempt(judge, head, floor, reader) for head in heads], floor
    floor = learn(heads, floor, reader.wall)
    results = [attempt(judge, head, floor, reader) for head in heads]
    passed = [result for result in results if not isinstance(result, Refused)]
    start = min(max([floor.newest_start] + [newest(found) for found in passed]), reader.wall + AHEAD)
    floor = replace(floor, newest_start=max(floor.newest_start, start))
    results = [attempt(judge, head, floor, reader) for head in heads]
    return compare(heads, results, floor)


def attempt(check, *arguments):
    try:
        return check(*arguments)
    except Refused as error:
        return error


def newest(found):
    stamp = found.head.timestamp if found.policies[-1].timestamps.keys else None
    return max(found.head.record.start, stamp.issued if stamp else 0)


# Section 9, step 1.


def learn(heads, floor, wall):
    """The floor with the policies to which all chains lead."""
    chains = []
    for head in heads:
        if not isinstance(attempt(check_chain, head.policies, floor.volume), Refused):
            if not any(policy.hash in floor.refused for policy in head.policies):
                chains.append(head.policies)
    known, hashes = floor.policies, [policy.hash for policy in floor.policies]
    on = [chain for chain in chains if [policy.hash for policy in chain[: len(known)]] == hashes]
    learned, fork = lead(on, len(known), floor.policy_fork or ())
    if not learned:
        fork = floor.policy_fork or fork or tip_fork(chains, known)
    chain = known + learned
    return replace(
        floor,
        policies=chain,
        policy_fork=fork,
        adopted=floor_under(chain, floor),
        newest_start=newest_start(chain, floor, wall),
        record_fork=None if settles(learned, floor.record_fork) else floor.record_fork,
    )


def lead(chains, place, remembered):
    """Which policies follow from `place` on, and the fork at which they end, if they do."""
    branches = {}
    for chain in chains:
        if len(chain) > place:
            branches.setdefault(chain[place].hash, []).append(chain)
    hashes = set(branches)
    if hashes & set(remembered):
        hashes |= set(remembered)
    ways = []
    for hash, those in branches.items():
        further, fork = lead(those, place + 1, remembered)
        if len(hashes) == 1 or any(hashes - {hash} <= set(policy.refused) for policy in further[:5]):
            ways.append(([those[0][place]] + further, fork))
    if len(ways) == 1:
        return ways[0]
    if hashes & set(remembered):
        return [], tuple(remembered)
    return [], tuple(sorted(hashes)[:2]) if branches else None


def tip_fork(chains, known):
    """The fork between the newest known policy and another one in its place."""
    if not known:
        return None
    tip, before = len(known) - 1, [policy.hash for policy in known[:-1]]
    others = [
        chain[tip].hash
        for chain in chains
        if len(chain) > tip
        and [policy.hash for policy in chain[:tip]] == before
        and chain[tip].hash != known[tip].hash
        and (known[tip].revoked or not chain[tip].revoked)
    ]
    return tuple(sorted([known[tip].hash, min(others)])) if others else None


def settles(learned, fork):
    return bool(fork) and any(policy.last and (policy.last[0] >= fork[0] or policy.lowers) for policy in learned)


# Section 9, steps 3 and 4.


def compare(heads, results, floor):
    """Finds forks among the heads that passed, and remembers one."""
    passed = [found for found in results if not isinstance(found, Refused)]
    forked, pairs = set(), []
    for a in passed:
        for b in passed:
            if a.head.record.version < b.head.record.version and contradicts(a, b):
                forked |= {a.head.record.hash, b.head.record.hash}
            if a.head.record.version == b.head.record.version and a.head.record.hash < b.head.record.hash:
                forked |= {a.head.record.hash, b.head.record.hash}
                pairs.append((a.head.record.version, (a.head.record.hash, a.log), (b.head.record.hash, b.log)))
    pairs += [pair for head, found in zip(heads, results) for pair in with_adopted(head, found, floor)]
    if pairs and not floor.record_fork:
        floor = replace(floor, record_fork=min(pairs, key=lambda pair: (pair[0], pair[1][0], pair[2][0])))
    adopted = floor.adopted.record if floor.adopted else None
    for place, found in enumerate(results):
        if not isinstance(found, Refused):
            hash = found.head.record.hash
            if hash in forked or (hash != adopted and (floor.record_fork or floor.policy_fork)):
                results[place] = Refused("fork", "signed statements contradict each other")
    return results, floor


def contradicts(older, newer):
    """Whether the log of the newer record evidently does not contain the older record."""
    if older.log.epoch != newer.head.record.log.epoch:
        return older.log.epoch > newer.head.record.log.epoch
    if older.log.size > newer.head.record.log.size:
        return True
    both = zip(older.subtrees, newer.head.frontier)
    for (size, ours), (other, theirs) in both:
        if size != other:
            return False
        if ours != theirs:
            return True
    return False


def with_adopted(head, found, floor):
    """The fork between the adopted record and another one of its version."""
    adopted = floor.adopted
    if not isinstance(found, Refused) or found.verdict != "fork" or adopted is None:
        return []
    if head.record.version != adopted.version or head.record.hash == adopted.record:
        return []
    return [(adopted.version, *sorted([(adopted.record, adopted.log), (head.record.hash, head.log_after())]))]


# Section 10.


def adopt(found, floor, reader):
    """The floor after adopting a judged head, without any tile."""
    if reader.pinned:
        return floor
    record, adopted = found.head.record, floor.adopted
    if adopted and record.version < adopted.version:
        raise Refused("rollback", "a newer version was adopted")
    if adopted and record.version == adopted.version and record.hash != adopted.record:
        raise Refused("fork", f"two records of version {record.version}")
    if adopted is None or record.hash != adopted.record:
        check_forks(floor)
        if adopted and adopted.log.epoch == record.log.epoch:
            if unproved(adopted.log, record.log.size, found.head.frontier):
                raise Refused("unproved", "no tile shows that the log only grew")
    return replace(floor, adopted=Adopted(record.version, record.hash, found.log, record.root))
