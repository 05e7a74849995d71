//! The memory of a device after every way in which a process or a machine can stop, and after damage.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use trust::device::{DeviceKey, Incarnation};
use trust::history::LogPoint;
use trust::key::SecretKey;
use trust::volume_id::VolumeId;
use trust_shared::entry::{Content, Entry as Written, Ops, Prefix, body_hash};
use trust_shared::mark::{MarkTree, Nonce};
use trust_shared::note::Note;

use super::*;
use ordering::prefixes::Recent;
use ordering::roster::{OpsCodec, Product};
use ordering::signed::{Entry, Marks};
use ordering::volume::{Attempt, Build, Outcome, Roll};

const VOLUME: VolumeId = VolumeId::from_bytes([9; 32]);

/// A volume in which nothing happens.
#[derive(Clone, Debug)]
struct Blank;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Say(Vec<u8>);

impl Keep for Say {
    fn encode(&self) -> Vec<u8> {
        self.0.clone()
    }

    fn decode(bytes: &[u8]) -> Result<Self, trust::Reject> {
        Ok(Say(bytes.to_vec()))
    }
}

impl Roll<Product> for Blank {
    fn active(&self, _: DeviceKey) -> bool {
        true
    }

    fn admitted(&self, _: DeviceKey) -> u64 {
        0
    }

    fn malformed(&self, _: &Entry) -> Option<&'static str> {
        None
    }

    fn extend(&mut self, _: u64, _: &Entry) {}
}

impl Volume<Product> for Blank {
    type Call = Say;
    type Answer = ();
    type Basis = crate::files::Basis;
    type Missing = ();
    type Block = ();

    fn accepted(&self, _: DeviceKey) -> u64 {
        0
    }

    fn build(&self, _: &Say, _: &Attempt<DeviceKey>) -> Build<Product, Self> {
        Build::Blocked(0)
    }

    fn outcome(&self, _: u64, _: usize, _: &Say) -> Outcome<Product, Self> {
        Outcome::Again
    }

    fn has_room(&self, _: &[trust_shared::ops::Op], _: &trust_shared::ops::Op) -> bool {
        false
    }

    fn silent(_: &Self::Basis) {}
}

type Kept = Durable<Product, Blank>;

fn blank() -> Ledger<Product, Blank> {
    Ledger::new(Recent::default(), Blank)
}

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

fn entry(n: u64, body: &[u8]) -> Entry {
    let ops = Ops {
        n: n + 1,
        previous: [n as u8; 32],
        outline: Bytes::from(n.to_be_bytes().to_vec()),
        body_hash: body_hash(body),
    };
    let entry = Written {
        epoch: 0,
        device: DeviceKey::from(&key(1).public()),
        incarnation: Incarnation::from_bytes([1; 16]),
        seen: Prefix {
            size: n,
            root: [3; 32],
        },
        kept: n,
        content: Content::Ops(ops),
    };
    let signed = entry.sign(VOLUME, &key(1)).unwrap();
    Entry::with_body(signed, Bytes::copy_from_slice(body)).unwrap()
}

fn marks(number: u8) -> Leaf<Product> {
    let tree = MarkTree::new(vec![Nonce::from_bytes([number; 32])]).unwrap();
    Leaf::Marks(Marks::new(tree.marks(), Vec::new()))
}

/// Records as an engine would give them, and what a restart must find after each.
struct Story {
    records: Vec<Record<Product, Blank>>,
    states: Vec<Kept>,
}

impl Story {
    fn new() -> Story {
        Story {
            records: Vec::new(),
            states: vec![Durable::new(blank())],
        }
    }

    fn tell(&mut self, record: Record<Product, Blank>) {
        let mut state = self.states.last().unwrap().clone();
        state.apply(&record);
        self.states.push(state);
        self.records.push(record);
    }

    fn floor(&mut self, leaves: Vec<Leaf<Product>>) {
        let mut after = self.states.last().unwrap().ledger.as_ref().clone();
        leaves.iter().for_each(|leaf| after.extend(leaf));
        let point = after.point();
        let log = LogPoint {
            epoch: 0,
            size: point.size,
            root: point.root,
        };
        let note = Note { log, time_ms: 7 }.sign(VOLUME, &key(2));
        self.tell(Record::Floor { leaves, note });
    }

    fn sent(&mut self, entry: &Entry, call: &[u8]) {
        self.tell(Record::Sent(Sent {
            entry: entry.clone(),
            calls: vec![Say(call.to_vec())],
        }));
    }

    /// Entries that are ordered, one that is not, and one whose calls take several records.
    fn long() -> Story {
        let mut story = Story::new();
        for n in 0..6 {
            let entry = entry(n, &vec![n as u8; 100 * n as usize]);
            story.sent(&entry, &vec![n as u8; if n == 3 { 150_000 } else { 20 }]);
            story.floor(vec![marks(n as u8), Leaf::Entry(entry)]);
        }
        story.sent(&entry(77, b"never ordered"), b"call");
        story.floor(vec![marks(90)]);
        story.tell(Record::Settled);
        story.sent(&entry(78, b""), b"waits");
        story.floor(vec![marks(91), marks(92)]);
        story
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn open(at: &Path, compact: u64) -> Result<(Disk<OpsCodec>, Kept), DiskError> {
    Disk::open_with(at, soon(), (blank(), None), compact)
}

/// An entry that was sent, and its calls.
type Calls = ([u8; 32], Vec<Say>);

/// What a restart finds: size and root, what the note says, and what was sent.
fn seen(state: &Kept) -> (Prefix, Option<u64>, Vec<Calls>) {
    let sent = state.sent.iter();
    (
        state.ledger.point(),
        state.ledger.note().map(|note| note.note().log.size),
        sent.map(|sent| (sent.entry.signed().hash(), sent.calls.clone()))
            .collect(),
    )
}

fn copy(from: &Path) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    for name in [JOURNAL, LEAVES] {
        fs::copy(from.join(name), to.path().join(name)).unwrap();
    }
    to
}

fn new() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    create(home.path()).unwrap();
    home
}

#[test]
fn killed_process_finds_every_record_again() {
    for compact in [COMPACT_BYTES, 1500] {
        let (story, home) = (Story::long(), new());
        let (mut disk, found) = open(home.path(), compact).unwrap();
        assert_eq!(seen(&found), seen(&story.states[0]));
        for (record, state) in story.records.iter().zip(&story.states[1..]) {
            disk.write(record).unwrap();
            let copied = copy(home.path());
            let closed = Closed::open(copied.path(), soon()).unwrap();
            assert_eq!(closed.unsettled(), state.sent.len());
            drop(closed);
            let (again, found) = open(copied.path(), compact).unwrap();
            assert_eq!(seen(&found), seen(state), "{compact}");
            assert_eq!(again.len(), state.ledger.size());
            assert_eq!(again.is_settled(), state.sent.is_empty());
        }
    }
}

#[test]
fn power_cut_leaves_what_was_synced_and_a_prefix_of_the_rest() {
    let (story, home) = (Story::long(), new());
    let (mut disk, _) = open(home.path(), COMPACT_BYTES).unwrap();
    let (mut lengths, path) = (vec![disk.journal.len_bytes()], home.path().join(JOURNAL));
    for (at, record) in story.records.iter().enumerate() {
        disk.write(record).unwrap();
        lengths.push(disk.journal.len_bytes());
        if at == 4 {
            disk.sync().unwrap();
        }
    }
    // The journal's own thread syncs too, after half a second: this is its header as it was after the call.
    let synced = disk.journal.synced_bytes().min(lengths[5]);
    let whole = fs::read(&path).unwrap();
    drop(disk);
    for cut in (0..whole.len() as u64).rev().step_by(331) {
        let copied = copy(home.path());
        let mut bytes = whole.clone();
        bytes[16..48].copy_from_slice(&header(synced));
        bytes.truncate(cut as usize);
        fs::write(copied.path().join(JOURNAL), bytes).unwrap();
        let found = open(copied.path(), COMPACT_BYTES);
        if cut < synced {
            assert!(found.is_err(), "{cut} of {synced}");
            continue;
        }
        let records = lengths.iter().filter(|length| **length <= cut).count() - 1;
        let (mut disk, state) = found.unwrap();
        assert_eq!(seen(&state), seen(&story.states[records]), "{cut}");
        // It goes on from there, also after an item that was cut in the middle.
        for record in &story.records[records..] {
            disk.write(record).unwrap();
        }
        drop(disk);
        let (_, state) = open(copied.path(), COMPACT_BYTES).unwrap();
        assert_eq!(seen(&state), seen(story.states.last().unwrap()));
    }
}

/// Both slots of a journal's header, from a journal of that length.
fn header(synced: u64) -> Vec<u8> {
    let length = |slot: &[u8]| u64::from_le_bytes(slot[..8].try_into().unwrap());
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("journal");
    let (journal, _) = Journal::open(&path, soon(), |_| ()).unwrap();
    let left = synced - journal.len_bytes();
    let mut rest = left;
    while rest > 0 {
        // A record has 20 bytes before its content.
        let next = if rest > 130_000 {
            65_000
        } else if rest > 60_000 {
            rest / 2
        } else {
            rest
        };
        journal
            .append_blocking(soon(), &vec![1; next as usize - 20])
            .unwrap();
        rest -= next;
    }
    journal.sync_blocking(soon()).unwrap();
    let bytes = fs::read(&path).unwrap();
    let slot = bytes[16..48].chunks(16).find(|slot| length(slot) == synced);
    slot.unwrap().repeat(2)
}

#[test]
fn process_killed_while_the_journal_is_made_short_finds_everything() {
    let (story, home) = (Story::long(), new());
    let (mut disk, _) = open(home.path(), COMPACT_BYTES).unwrap();
    for record in &story.records {
        disk.write(record).unwrap();
    }
    let before = copy(home.path());
    disk.compact().unwrap();
    assert!(
        disk.journal.len_bytes() < 2000,
        "{}",
        disk.journal.len_bytes()
    );
    drop(disk);
    let last = story.states.last().unwrap();
    // The leaves are in their file, and the journal is the old one or the new one.
    let leaves = fs::read(home.path().join(LEAVES)).unwrap();
    for cut in [leaves.len(), leaves.len() / 2, 16] {
        let stopped = copy(before.path());
        fs::write(stopped.path().join(LEAVES), &leaves[..cut]).unwrap();
        let (mut disk, state) = open(stopped.path(), COMPACT_BYTES).unwrap();
        assert_eq!(seen(&state), seen(last), "{cut}");
        disk.compact().unwrap();
        drop(disk);
        let (_, state) = open(stopped.path(), COMPACT_BYTES).unwrap();
        assert_eq!(seen(&state), seen(last), "{cut}");
    }
    let (_, state) = open(home.path(), COMPACT_BYTES).unwrap();
    assert_eq!(seen(&state), seen(last));
}

#[test]
fn damage_is_an_error_and_never_a_new_beginning() {
    let (story, home) = (Story::long(), new());
    let (mut disk, _) = open(home.path(), COMPACT_BYTES).unwrap();
    for record in &story.records[..8] {
        disk.write(record).unwrap();
    }
    disk.compact().unwrap();
    for record in &story.records[8..] {
        disk.write(record).unwrap();
    }
    disk.sync().unwrap();
    drop(disk);
    for name in [JOURNAL, LEAVES] {
        let whole = fs::read(home.path().join(name)).unwrap();
        for at in (0..whole.len()).step_by(37) {
            // Either slot of the journal's header is enough.
            if name == JOURNAL && (16..48).contains(&at) {
                continue;
            }
            let copied = copy(home.path());
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(copied.path().join(name), bytes).unwrap();
            let found = open(copied.path(), COMPACT_BYTES);
            assert!(found.is_err(), "{name} at {at}");
        }
        let copied = copy(home.path());
        fs::remove_file(copied.path().join(name)).unwrap();
        let found = open(copied.path(), COMPACT_BYTES);
        assert!(found.is_err(), "{name} is gone");
        let shorter = copy(home.path());
        fs::write(shorter.path().join(name), &whole[..whole.len() - 1]).unwrap();
        assert!(open(shorter.path(), COMPACT_BYTES).is_err(), "{name}");
    }
}

#[test]
fn leaves_and_their_hashes_are_found_in_the_file_and_in_the_journal() {
    let (story, home) = (Story::long(), new());
    let (mut disk, _) = open(home.path(), COMPACT_BYTES).unwrap();
    let mut leaves = Vec::new();
    for (at, record) in story.records.iter().enumerate() {
        disk.write(record).unwrap();
        if let Record::Floor { leaves: new, .. } = record {
            leaves.extend_from_slice(new);
        }
        if at == 7 {
            disk.compact().unwrap();
        }
    }
    use ordering::prefixes::Rfc6962;
    let hashes: Vec<[u8; 32]> = leaves.iter().map(Product::leaf_hash).collect();
    assert_eq!(disk.hashes().unwrap(), hashes);
    for (at, hash) in hashes.iter().enumerate() {
        let leaf = disk.leaf(at as u64).unwrap().unwrap();
        assert_eq!(Product::leaf_hash(&leaf), *hash);
        if let (Leaf::Entry(found), Leaf::Entry(entry)) = (leaf, &leaves[at]) {
            assert_eq!(found.body(), entry.body());
        }
    }
    assert!(disk.leaf(hashes.len() as u64).unwrap().is_none());
    let end = hashes.len() as u64;
    for (from, to) in [
        (0, end),
        (0, 3),
        (5, 9),
        (end - 1, end + 9),
        (7, 7),
        (end, end + 3),
    ] {
        let found: Vec<(u64, [u8; 32])> = disk
            .range(from, to)
            .unwrap()
            .iter()
            .map(|(at, leaf)| (*at, Product::leaf_hash(leaf)))
            .collect();
        let wanted = (from..to.min(end)).map(|at| (at, hashes[at as usize]));
        assert_eq!(found, wanted.collect::<Vec<_>>(), "{from} to {to}");
    }
}

#[test]
fn second_process_waits_until_the_deadline_and_is_told_who_has_the_volume() {
    let home = new();
    let (disk, _) = open(home.path(), COMPACT_BYTES).unwrap();
    let until = Instant::now() + Duration::from_millis(80);
    let error = Disk::<OpsCodec>::open(home.path(), until, blank(), None)
        .err()
        .unwrap();
    assert!(
        matches!(&error, DiskError::State(error) if error.is_locked()),
        "{error}"
    );
    assert!(
        error.to_string().contains(&std::process::id().to_string()),
        "{error}"
    );
    drop(disk);
    open(home.path(), COMPACT_BYTES).unwrap();
}
