//! Random histories against the feed: each file and each name that readers see changed between two cursors is named.
//!
//! The oracle knows no entry: it reads the whole tree of the volume at each cursor, as a program would, and compares. The
//! devices write over one another, move directories, lose races, lock, fold, are silent and come back; the reader
//! loses roles and gets others, its connection breaks, its process is killed, and it starts with a snapshot.

use std::collections::{BTreeSet, HashMap, HashSet};

use sim::random::Random;
use trust::tree::inode::FileKind;
use trust_shared::decision::{Label, Role};
use trust_shared::principal::{Device, FileId};

use super::snapshots::often;
use super::tidy::never;
use super::*;
use crate::files::{After, Attributes, Cursor, Feed, FileRef, Over, Refused, Thing, Touched};

const STEPS: u64 = 150;
const FOUNDER: usize = 0;
/// The machine of the reader, whose device writes too.
const READER: u8 = 2;
/// The machine that is silent after it has written.
const SILENT: u8 = 4;
const READERS_USER: Principal = Principal::from_bytes([2; 32]);
const TEAM: Principal = Principal::from_bytes([9; 32]);

/// What a reader sees: of each file what a look-up says, and where each name leads.
type Seen = HashMap<Thing, String>;

/// A program that asks for the feed.
struct Follower {
    /// How long entries of silent devices hold its questions up.
    hold_ms: u32,
    cursor: Option<Cursor>,
    seen: Seen,
    files: BTreeSet<FileId>,
    looked_again: u32,
    told: usize,
}

impl Follower {
    fn new(hold_ms: u32) -> Follower {
        Follower {
            hold_ms,
            cursor: None,
            seen: Seen::new(),
            files: BTreeSet::new(),
            looked_again: 0,
            told: 0,
        }
    }

    /// Asks until there is no more, and compares what was told with what there is to see.
    async fn follow(&mut self, (lab, reader): (&Lab, &Client), what: &str) {
        // Permission to read is judged as of now, also for an earlier prefix.
        let has_all = || reader.view().size >= lab.door.size();
        eventually("the reader has all that was decided", has_all).await;
        loop {
            let call = Call::Feed {
                since: self.cursor,
                wait: false,
                hold_ms: self.hold_ms,
            };
            let feed = match done(reader.look(call, soon()).await) {
                Answer::Feed(feed) => feed,
                other => panic!("{what}: {other:?}"),
            };
            let (cursor, told, after) = match feed {
                Feed::LookAgain { now } => {
                    self.looked_again += 1;
                    (now, None, After::Nothing)
                }
                Feed::Changes {
                    changes,
                    until,
                    after,
                } => (until, Some(changes), after),
            };
            let known = self.files.clone();
            let mut seen = see(reader, cursor.size, &mut self.files).await;
            if let (Some(told), Some(since)) = (told, self.cursor) {
                let met = |thing: &Thing| !known.contains(&thing_file(thing));
                // What the reader meets now may have been there: a directory was moved into its sight. The past says.
                let past = see(reader, since.size, &mut self.files).await;
                let met_past = past.into_iter().filter(|(thing, _)| met(thing));
                let mut before = self.seen.clone();
                before.extend(met_past);
                // The past may have led to more.
                if self.files.len() > known.len() {
                    seen = see(reader, cursor.size, &mut self.files).await;
                }
                check(&before, &seen, &told, (since.size, cursor.size), what);
                self.told += told.len();
            }
            (self.cursor, self.seen) = (Some(cursor), seen);
            if after != After::More {
                return;
            }
        }
    }
}

/// The file that a thing is about, or the directory of a name.
fn thing_file(thing: &Thing) -> FileId {
    match thing {
        Thing::File(file) | Thing::Name(file, _) => *file,
        Thing::Owned(_) => unreachable!("no reader sees one"),
    }
}

/// Each difference was told, and nothing out of place.
fn check(before: &Seen, now: &Seen, told: &[Touched], (from, to): (u64, u64), what: &str) {
    let order: Vec<u64> = told.iter().map(|touched| touched.at).collect();
    assert!(order.is_sorted(), "{what}: {order:?}");
    let is_between = |at: &u64| (from..to).contains(at);
    assert!(
        order.iter().all(is_between),
        "{what}: {order:?} {from} {to}"
    );
    let told: HashSet<&Thing> = told.iter().map(|touched| &touched.what).collect();
    for thing in before.keys().chain(now.keys()) {
        let (old, new) = (before.get(thing), now.get(thing));
        let principal = match thing {
            // A name has led to it. Whether the file is there is not shown to this reader.
            Thing::File(_) if old.is_none() && new.is_some_and(|it| it.starts_with("Refused")) => {
                continue;
            }
            Thing::File(file) | Thing::Name(file, _) => file.principal,
            Thing::Owned(_) => continue,
        };
        let is_told = told.contains(thing) || told.contains(&Thing::Owned(principal));
        assert!(
            old == new || is_told,
            "{what}: not told between {from} and {to}: {thing:?}\nwas {old:?}\nis {new:?}"
        );
    }
}

/// What the reader sees at the end of a prefix: the tree, and all files and directories that it has ever seen. A directory
/// that was moved below one that the reader may not read is not reached any more, and its names are as they were.
async fn see(reader: &Client, size: u64, files: &mut BTreeSet<FileId>) -> Seen {
    let at = |size, call| {
        let call = Box::new(call);
        async move { done(reader.look(Call::At { size, call }, soon()).await) }
    };
    let root = || Call::Lookup {
        place: place(reader, ""),
        follow: false,
    };
    // Leaves after the last entry are marks: for the files, the log ends with that entry.
    let mut size = size;
    while at(size, root()).await == Answer::Refused(Refused::Beyond) {
        size -= 1;
    }
    let ask = |call| at(size, call);
    let mut seen = Seen::new();
    files.insert(reader.root());
    // What is no directory is refused.
    let mut next: Vec<FileId> = files.iter().copied().collect();
    let mut met = HashSet::new();
    while let Some(directory) = next.pop() {
        if !met.insert(directory) {
            continue;
        }
        let list = Call::List {
            directory: FileRef::File(directory),
            after: None,
            most: 256,
            inodes: true,
        };
        let Answer::Listed {
            names, next: more, ..
        } = ask(list).await
        else {
            continue;
        };
        assert_eq!(more, None);
        for listed in names {
            files.insert(listed.target.file);
            if listed.target.kind == FileKind::Directory {
                next.push(listed.target.file);
            }
            let leads = format!("{:?}", listed.target);
            seen.insert(Thing::Name(directory, listed.name), leads);
        }
    }
    for file in files.iter() {
        let place = Place {
            start: *file,
            path: Vec::new(),
        };
        let found = ask(Call::Lookup {
            place,
            follow: false,
        });
        seen.insert(Thing::File(*file), format!("{:?}", found.await));
    }
    seen
}

struct World {
    lab: Lab,
    random: Random,
    /// The founder, the reader's device, and a third one.
    clients: [Client; 3],
    wire: Arc<hosted::Wire>,
    is_silent: bool,
    role_decisions: u32,
}

fn options() -> Options {
    Options {
        snapshot_after: often(8).snapshot_after,
        ..never()
    }
}

/// A call may wait for the lock of a device that is gone. It may have effect after this limit.
fn until() -> Instant {
    Instant::now() + Duration::from_millis(700)
}

impl World {
    async fn new(seed: u64) -> World {
        let lab = Lab::with(Silence::Strict, 100);
        let wire = Arc::default();
        let founder = lab.client_with(1, &Arc::default(), &never());
        founder.running(soon()).await.unwrap();
        lab.admit(&founder, 3).await;
        lab.admit(&founder, SILENT).await;
        let volume = founder.root().principal;
        let user = READERS_USER;
        let grant = |group, user, role| Decision::Grant { group, user, role };
        let decisions = [
            Decision::AddUser {
                user,
                label: Label::new("carl").unwrap(),
            },
            Decision::AddGroup {
                group: TEAM,
                label: Label::new("team").unwrap(),
            },
            grant(volume, user, Role::Writer),
            grant(TEAM, Principal::from_bytes([7; 32]), Role::Admin),
            grant(TEAM, user, Role::Reader),
            Decision::AdmitDevice {
                device: Device(READER.into()),
                key: key(READER).public(),
                user,
            },
        ];
        for decision in decisions {
            let answer = done(founder.call(Call::Decide(decision), soon()).await);
            assert_eq!(answer, Answer::Settled);
        }
        let reader = lab.client_with(READER, &wire, &options());
        let third = lab.client_with(3, &Arc::default(), &never());
        reader.running(soon()).await.unwrap();
        third.running(soon()).await.unwrap();
        World {
            lab,
            random: Random::new(seed),
            clients: [founder, reader, third],
            wire,
            is_silent: false,
            role_decisions: 0,
        }
    }

    fn reader(&self) -> &Client {
        &self.clients[1]
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.random.below(from.len() as u64) as usize].clone()
    }

    fn path(&mut self) -> String {
        let names = ["a", "b", "c", "d"];
        let depth = self.pick(&[1, 1, 1, 2, 2, 3]);
        let path: Vec<&str> = (0..depth).map(|_| self.pick(&names)).collect();
        path.join("/")
    }

    /// A call that may do anything, or nothing.
    fn any_call(&mut self, client: &Client) -> Call {
        let path = place(client, &self.path());
        let other = place(client, &self.path());
        let file = FileRef::Place(path.clone());
        let text = self.random.number().to_string();
        match self.random.below(12) {
            0..=2 => {
                let mut made = inode(&text);
                if self.random.below(2) == 0 {
                    let map = None;
                    made.content = Content::Directory { map, opaque: false };
                }
                Call::Create {
                    place: path,
                    number: client.new_number().unwrap(),
                    inode: Box::new(made),
                    owner: self.pick(&[None, None, Some(TEAM)]),
                    replace: self.pick(&[true, false]).into(),
                }
            }
            3 | 4 => Call::SetContent {
                file,
                content: inode(&text).content,
                mtime: Time::default(),
                expect: self.pick(&[None, Some(inode("stale").content)]),
            },
            5 => Call::SetAttributes {
                file,
                attributes: Attributes {
                    mode: Some(self.random.below(0o777) as u16),
                    ..Attributes::default()
                },
                expect: None,
            },
            6 => Call::Unlink { place: path },
            7 => Call::Rmdir { place: path },
            8 | 9 => Call::Rename {
                from: path,
                to: other,
                over: self.pick(&[Over::Replace, Over::Refuse, Over::Exchange]),
            },
            10 => Call::Link { file, to: other },
            _ => match self.random.below(3) {
                0 => Call::Lock { file, wait: false },
                1 => Call::Unlock { file },
                _ => {
                    let owners = [client.root().principal, TEAM];
                    Call::Fold(self.pick(&owners))
                }
            },
        }
    }

    /// Some calls of several devices at once. What they answer does not matter.
    async fn calls(&mut self) {
        let mut all = Vec::new();
        for _ in 0..1 + self.random.below(6) {
            let client = self.pick(&self.clients.clone());
            let call = self.any_call(&client);
            all.push(async move { client.call(call, until()).await });
        }
        futures_util::future::join_all(all).await;
    }

    /// A decision about the reader's user.
    async fn decide(&mut self) {
        let founder = self.clients[FOUNDER].clone();
        let group = self.pick(&[founder.root().principal, TEAM]);
        let user = READERS_USER;
        let (reader, writer) = (Some(Role::Reader), Some(Role::Writer));
        let roles = [None, reader, writer, writer, writer];
        let decision = match self.pick(&roles) {
            None => Decision::Revoke { group, user },
            Some(role) => Decision::Grant { group, user, role },
        };
        self.role_decisions += 1;
        done(founder.call(Call::Decide(decision), soon()).await);
    }

    /// Another decision, which changes nothing that the reader sees.
    async fn decide_on_others(&mut self) {
        let founder = self.clients[FOUNDER].clone();
        let decision = Decision::NameDevice {
            device: Device(3),
            label: Label::new("desk").unwrap(),
        };
        done(founder.call(Call::Decide(decision), soon()).await);
    }

    /// A device writes and goes before it attests what it wrote, or comes back and attests it.
    async fn silent_device(&mut self) {
        let silent = Options {
            attest_after: Duration::from_secs(3600),
            ..never()
        };
        let options = match self.is_silent {
            true => never(),
            false => silent,
        };
        let client = self.lab.client_with(SILENT, &Arc::default(), &options);
        client.running(soon()).await.unwrap();
        if !self.is_silent {
            for _ in 0..3 {
                let call = self.any_call(&client);
                let _ = client.call(call, until()).await;
            }
        } else {
            let attested = async || client.status(soon()).await.unwrap().own_attested;
            while !attested().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        client.close(soon()).await.unwrap();
        self.is_silent = !self.is_silent;
    }

    async fn restart(&mut self) {
        let reader = self.reader().clone();
        match self.random.below(2) {
            0 => reader.close(soon()).await.unwrap(),
            _ => self.lab.kill(READER, reader).await,
        }
        let reader = self.lab.client_with(READER, &self.wire, &options());
        reader.running(soon()).await.unwrap();
        self.clients[1] = reader;
    }

    async fn step(&mut self) {
        match self.random.below(24) {
            0 => self.decide().await,
            1 => self.decide_on_others().await,
            2 | 3 => self.silent_device().await,
            4 => self.restart().await,
            5 => self.wire.break_after(self.random.below(6) as i64),
            6 => {
                self.lab.door.close();
                self.lab.serve();
            }
            _ => self.calls().await,
        }
    }
}

async fn history(seed: u64) {
    let mut world = World::new(seed).await;
    // One is told of what may be used, and one of everything.
    let mut followers = [Follower::new(u32::MAX), Follower::new(0)];
    for step in 0..STEPS {
        world.step().await;
        let what = format!("seed {seed}, step {step}");
        for follower in &mut followers {
            if world.random.below(3) == 0 {
                follower.follow((&world.lab, world.reader()), &what).await;
            }
        }
    }
    if world.is_silent {
        world.silent_device().await;
    }
    // All that was written may be used now, once the reader has heard of it.
    let what = format!("seed {seed}, at the end");
    let late = soon();
    loop {
        let status = world.reader().status(soon()).await.unwrap();
        for follower in &mut followers {
            follower.follow((&world.lab, world.reader()), &what).await;
        }
        let sizes = followers.iter().map(|it| it.cursor.unwrap().size);
        if sizes.min() >= Some(status.log.size) && status.supported == status.log.size {
            break;
        }
        assert!(Instant::now() < late, "{what}: {status:?}");
        // A read asks the authors to attest.
        let _ = look(world.reader(), "a").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for follower in &followers {
        // Of a history in which the reader has lost its roles for long, little is told.
        assert!(follower.told > 5, "{what}: {}", follower.told);
        // To look again is rare: at the beginning, and when roles of the reader change.
        let most = 1 + world.role_decisions;
        assert!(
            follower.looked_again <= most,
            "{what}: {} {most}",
            follower.looked_again
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_that_a_reader_sees_is_in_the_feed() {
    // A failed history prints its seed, with which it runs again.
    if let Ok(seed) = std::env::var("BULLA_HISTORY") {
        return history(seed.parse().unwrap()).await;
    }
    let seeds = match std::env::var_os("BULLA_LONG") {
        Some(_) => 60,
        None => 2,
    };
    for seed in 0..seeds {
        history(seed).await;
    }
}
