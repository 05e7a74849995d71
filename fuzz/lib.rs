//! Shared by the fuzz targets: seeds, and a small valid volume to make them from. Seeds are made and not
//! stored, so they always have today's formats. Relies on the product's own encoders.

use std::path::Path;

use bytes::{Bytes, BytesMut};
use trust::frame::Packer;
use trust::head::{Head, first_log};
use trust::key::SecretKey;
use trust::policy::{Genesis, Policy, Roles, Successor, Threshold};
use trust::root::{RootRecord, Totals};
use trust::statement::{Signed, VolumeId};
use trust::timestamp::Timestamp;
use trust::{Handle, Hasher, InodeBlock, Kind, Record, checkpoint, map};

/// The time of all targets, unix seconds.
pub const NOW: u64 = 1_800_000_000;

/// Writes `seeds` to the fuzzer's corpus directory. Call it before the fuzzer reads that directory.
pub fn plant(seeds: impl IntoIterator<Item = Vec<u8>>) {
    let Some(directory) = std::env::var_os("BULLA_FUZZ_CORPUS") else {
        return;
    };
    for (number, seed) in seeds.into_iter().enumerate() {
        let path = Path::new(&directory).join(format!("seed-{number:03}"));
        std::fs::write(&path, seed).expect("a seed can be written");
    }
}

/// The bytes of a structure in docs/formats/vectors/shared.txt, which a test keeps to today's formats.
pub fn shared_vectors(structure: &str) -> Vec<Vec<u8>> {
    let lines = include_str!("../docs/formats/vectors/shared.txt").lines();
    let of = lines.filter(|line| line.split(' ').next() == Some(structure));
    let seeds: Vec<_> = of
        .filter_map(|line| vector(line.split(' ').nth(3)?))
        .collect();
    assert!(!seeds.is_empty(), "no vector of {structure}");
    seeds
}

/// Reads hexadecimal digits and runs `HH*N`, joined by `+`.
fn vector(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for part in text.split('+').filter(|part| *part != "-") {
        let (digits, times) = part.split_once('*').unwrap_or((part, "1"));
        let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let run: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(byte)
            .collect::<Option<_>>()?;
        bytes.extend(run.repeat(times.parse().ok()?));
    }
    Some(bytes)
}

/// The bytes with their last 32 replaced by the right checksum. Otherwise the decoder would refuse all of
/// them.
pub fn with_checksum(data: &[u8]) -> Vec<u8> {
    let body = data
        .get(..data.len().saturating_sub(32))
        .unwrap_or_default();
    [body, blake3::hash(body).as_bytes()].concat()
}

/// The hash function of all seeds.
pub fn hasher() -> Hasher {
    Hasher::new(&[3; 32])
}

/// A key by number.
pub fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

/// The witness of [`honest_head`].
pub fn witnesses() -> Threshold {
    Threshold::single(key(4).public())
}

/// Every node of maps of several sizes: leaves, interior nodes.
pub fn map_nodes() -> Vec<Vec<u8>> {
    let mut nodes = Vec::new();
    for entries in [1u32, 40, 6000] {
        let mut builder = map::Builder::new(&hasher(), [0; 16], |_, bytes: &Bytes| {
            if nodes.len() < 12 || entries > 1000 && bytes.len() < 4000 {
                nodes.push(bytes.to_vec());
            }
        });
        for n in 0..entries {
            let name = format!("name {n:06}");
            builder
                .push(name.as_bytes(), &[b'v'; 20])
                .expect("an entry");
        }
        builder.finish().expect("a map");
    }
    nodes
}

/// A head with a timestamp and a cosigned checkpoint, its volume and the log after its record.
pub fn honest_head() -> (VolumeId, Head, trust::history::LogPoint) {
    head_of(Handle::from_bytes([5; 32]))
}

/// The volume of [`honest_head`] and its first 20 policies, which keep all roles.
pub fn rotated_policies() -> (VolumeId, Vec<Signed>) {
    let (volume, head, _) = honest_head();
    let mut policies = head.policies;
    let Ok(Policy::Genesis(genesis)) = policies[0].statement().read(VolumeId::UNBORN) else {
        unreachable!("a genesis policy");
    };
    for number in 1..20 {
        let successor = Successor {
            number,
            previous: policies[number as usize - 1].hash(),
            not_after: u64::MAX,
            log_epoch: 0,
            roles: genesis.roles.clone(),
            last: None,
            lower: false,
            revoked: None,
            refused: Vec::new(),
        };
        policies.push(successor.statement(volume).sign(&[&key(1)]));
    }
    (volume, policies)
}

/// The hash function of the volume of [`honest_head`].
pub fn volume_hasher() -> Hasher {
    Hasher::new(&[9; 32])
}

/// Like [`honest_head`], with another tree.
pub fn head_of(root: Handle<InodeBlock>) -> (VolumeId, Head, trust::history::LogPoint) {
    let roles = Roles {
        owners: Threshold::single(key(1).public()),
        publishers: Threshold::single(key(2).public()),
        record_max: 7 * 24 * 3600,
        timestamps: Threshold::single(key(3).public()),
        timestamp_max: 3600,
        log: Threshold::single(key(5).public()),
        witnesses: witnesses(),
    };
    let genesis = Genesis::new("seed", [7; 32], [9; 32], roles).expect("a policy");
    let volume = genesis.volume_id();
    let policy = genesis.statement().sign(&[&key(1)]);
    let (log, frontier) = first_log(&policy).expect("a log");
    let record = RootRecord {
        version: 1,
        start: NOW,
        duration: 7 * 24 * 3600,
        root,
        totals: Totals {
            files: 3,
            directories: 1,
            other: 2,
            bytes: 1 << 20,
        },
        policy_number: 0,
        policy_hash: policy.hash(),
        log,
        mirrors: vec!["bulla://mirror.example".to_owned()],
    };
    let record = record.statement(volume).sign(&[&key(2)]);
    let timestamp = Timestamp {
        record_hash: record.hash(),
        policy_number: 0,
        policy_hash: policy.hash(),
        issued: NOW,
        until: NOW + 3600,
    };
    let mut after = frontier.clone();
    after.push(record.statement().bytes()).expect("a leaf");
    let after = after.point(0);
    let text = checkpoint::text(volume, &after);
    let message = checkpoint::cosigned_message(&text, NOW);
    let line = checkpoint::cosignature_line(
        "witness.example",
        &key(4).public(),
        NOW,
        &key(4).sign(message.as_bytes()),
    );
    let head = Head {
        policies: vec![policy],
        record,
        timestamp: Some(timestamp.statement(volume).sign(&[&key(3)])),
        checkpoint: Some(format!("{text}\n{line}").into()),
        frontier,
        later_log: None,
    };
    (volume, head, after)
}

/// A record of this length that does not compress.
pub fn record(number: u8, len_bytes: usize) -> Record {
    let mut x = u32::from(number) + 1;
    let step = |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    let plain: Vec<u8> = (0..len_bytes).map(step).collect();
    Record {
        handle: hasher().name(Kind::Data, &plain),
        frame: Packer::new().pack(Kind::Data, &plain).expect("a frame"),
    }
}

/// Records back to back.
pub fn run_of(records: &[Record]) -> Bytes {
    let mut out = BytesMut::new();
    records.iter().for_each(|record| record.put(&mut out));
    out.freeze()
}

/// A disk in memory with these files.
pub fn disk(files: &[(&str, &[u8])]) -> std::sync::Arc<sim::disk::CrashDisk> {
    use store::disk::Disk;
    let disk = sim::disk::CrashDisk::new();
    for (name, bytes) in files {
        if let Some((dir, _)) = name.rsplit_once('/') {
            disk.make_dir(dir).expect("a directory");
        }
        let file = disk.create(name).expect("a file");
        file.write_at(bytes, 0).expect("a write");
    }
    disk
}

/// The bytes of every file with this suffix in a valid repository, and its head file.
pub fn repository_files(ending: &str) -> (Vec<Vec<u8>>, Vec<u8>) {
    use store::disk::Disk;
    let disk = sim::disk::CrashDisk::new();
    let repository = store::Repository::create_on(disk.clone()).expect("a repository");
    let mut writer = store::Writer::begin(&repository).expect("a writer");
    for n in 0..120 {
        writer
            .append(&record(n, 50 + usize::from(n)))
            .expect("a record");
    }
    writer.commit(b"statements").expect("a commit");
    let read = |name: &String| {
        let file = disk.open(name).expect("a file");
        let mut bytes = vec![0; file.len_bytes().expect("a length") as usize];
        file.read_at(&mut bytes, 0).expect("a read");
        bytes
    };
    let files = disk.files();
    let some = files.iter().filter(|name| name.ends_with(ending)).map(read);
    (some.collect(), read(&"head".to_owned()))
}

/// Bodies of entries of a shared volume: one op of each kind.
pub fn shared_bodies() -> Vec<Vec<u8>> {
    use trust::inode::{Content, FileContent, Inode, Time};
    use trust_shared::calls::{self, Calls, Directory, Spot};
    use trust_shared::decision::{Decision, Label, Role};
    use trust_shared::effect::Volume;
    use trust_shared::itable::Fold;
    use trust_shared::ops::{Body, Op};
    use trust_shared::principal::{Device, FileId, INumber, Name, Principal};
    let (volume, user) = (
        Principal::from_bytes([1; 32]),
        Principal::from_bytes([10; 32]),
    );
    let file = |counter| FileId {
        principal: volume,
        number: INumber {
            device: Device(0),
            counter,
        },
    };
    let volume_of = Volume {
        hasher: hasher(),
        root: file(0),
    };
    let calls = Calls {
        volume: &volume_of,
        time: Time::default(),
    };
    let spot = Spot {
        directory: Directory {
            id: file(0),
            path: Vec::new(),
        },
        name: Name::new(b"name").expect("a name"),
        found: None,
    };
    let plain = Inode::new(0o644, Time::default(), Content::Regular(FileContent::Empty));
    let create = calls.create(&spot, file(1), plain).expect("an op");
    let label = Label::new("two").expect("a label");
    let decisions = [
        Decision::AddUser { user, label },
        Decision::Grant {
            group: volume,
            user,
            role: Role::Writer,
        },
        Decision::AdmitDevice {
            device: Device(1),
            key: key(2).public(),
            user,
        },
        Decision::Accept { device: Device(0) },
        Decision::NameDevice {
            device: Device(1),
            label: Label::new("laptop").expect("a label"),
        },
    ];
    let fold = Fold {
        upto: 7,
        root: None,
    };
    let mut ops: Vec<Op> = vec![
        create,
        calls::lock(file(1), None, Device(0)),
        calls::unlock(file(1)),
        calls::claim(file(1), None),
        Op::new(Vec::new(), vec![calls::give_up(file(1), Some(Device(1)))]),
        calls::fold(volume, None, fold),
    ];
    ops.extend(decisions.map(calls::decide));
    let whole = Body::new(ops.clone()).expect("a body");
    let single = ops.into_iter();
    let single = single.map(|op| Body::new(vec![op]).expect("a body").encode());
    single.chain([whole.encode()]).collect()
}

/// A loopback address, a new one each time. Closed connections remain for a minute, so those of a single
/// address would soon take all its ports.
pub fn next_loopback() -> std::net::SocketAddr {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [_, a, b, c] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    ([127, 1 + a % 200, b, 1 + c % 250], 0).into()
}
