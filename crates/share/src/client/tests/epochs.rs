//! The owners let a prefix of the log stand: devices go over, refuse another beginning, and give back what they alone
//! have.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use state::StateError;
use store::BlockSink;
use trust::Kind;
use trust::frame::Packer;
use trust::policy::Successor;
use trust::signatures::Signatures;
use trust::tree::array::ArrayRoot;
use trust_shared::entry::Prefix;
use trust_shared::evidence::{Convicted, verify};
use trust_shared::genesis::{self, Policies};
use trust_shared::mark::{MarkTree, Nonce};
use trust_shared::note::Note;

use super::*;
use crate::client::{Phase, Stopped};
use crate::disk::DiskError;
use crate::files::{Feed, Refused};
use crate::home::{Followed, HomeError};
use ordering::prefixes::Rfc6962;
use ordering::roster::Product;
use ordering::scheme::Leaf;
use ordering::signed::Marks;

impl Lab {
    /// All rules of the volume: those that it has, and one that lets this prefix stand.
    fn rules(&self, start: Prefix, lower: bool) -> Vec<Signed> {
        let mut signatures = Signatures::new(8);
        let known = Policies::verify(self.volume, &self.policies, &mut signatures).unwrap();
        let newest = known.chain().newest();
        let epoch = known.newest_epoch().number;
        let successor = Successor {
            number: newest.number() + 1,
            previous: known.chain().newest_hash(),
            not_after: newest.not_after(),
            log_epoch: epoch + 1,
            roles: newest.roles().clone(),
            last: Some(genesis::standing(epoch, &start)),
            lower,
            revoked: None,
            refused: Vec::new(),
        };
        let roles = SharedRoles {
            founder: None,
            ..known.roles().clone()
        };
        let next = genesis::successor(self.volume, &successor, &roles).sign(&[&key(250)]);
        self.policies.iter().cloned().chain([next]).collect()
    }

    /// The server goes over. No client may be connected.
    async fn renew(&self, rules: &[Signed]) {
        self.door.close();
        let server = self.dir.path().join("server");
        let renewed = || Host::renew(&server, rules, &key(251).public());
        // The last session may end a moment later.
        let is_renewed = || renewed().is_ok();
        eventually("the server goes over", is_renewed).await;
        self.serve();
    }
}

fn follow(lab: &Lab, machine: u8, rules: &[Signed]) -> Result<Followed, HomeError> {
    lab.home(machine).follow(rules, soon())
}

/// Names in the root directory.
async fn names(client: &Client) -> Vec<String> {
    let list = Call::List {
        directory: crate::files::FileRef::Place(place(client, "")),
        after: None,
        most: 100,
        inodes: false,
    };
    let answer = done(client.call(list, soon()).await);
    let Answer::Listed { names, .. } = answer else {
        panic!("{answer:?}");
    };
    let name =
        |listed: &crate::files::Listed| String::from_utf8(listed.name.as_bytes().to_vec()).unwrap();
    names.iter().map(name).collect()
}

/// A device that has written before and after the prefix that is to stand. Gives the prefix.
async fn written(lab: &Lab) -> Prefix {
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    done(
        client
            .call(create(&client, "before", "stands"), soon())
            .await,
    );
    let start = client.status(soon()).await.unwrap().log;
    let directory = Call::Create {
        inode: Box::new(Inode::new(
            0o755,
            inode("").mtime,
            Content::Directory {
                map: None,
                opaque: false,
            },
        )),
        place: place(&client, "trips"),
        number: client.new_number().unwrap(),
        owner: None,
        replace: false.into(),
    };
    assert!(matches!(
        done(client.call(directory, soon()).await),
        Answer::Done(_)
    ));
    for (path, content) in [("after", "is lost"), ("trips/plan", "is lost too")] {
        let made = client.call(create(&client, path, content), soon()).await;
        assert!(matches!(done(made), Answer::Done(_)));
    }
    let place = place(&client, "before");
    done(client.call(Call::Unlink { place }, soon()).await);
    client.close(soon()).await.unwrap();
    start
}

/// How long each call may take.
const PATIENCE: Duration = Duration::from_secs(60);
const AFTER: &str = "after (conflict device 0 2023-11-14)";
const PLAN: &str = "trips/plan (conflict device 0 2023-11-14)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_gives_back_once_what_it_wrote_beyond_the_prefix() {
    let lab = Lab::new();
    let start = written(&lab).await;
    let rules = lab.rules(start, true);
    lab.renew(&rules).await;
    assert_eq!(follow(&lab, 1, &rules).unwrap(), Followed::Epoch(1));
    assert_eq!(follow(&lab, 1, &rules).unwrap(), Followed::Known);
    for round in 0..2 {
        let client = lab.client(1);
        client.running(soon()).await.unwrap();
        assert!(client.owes());
        // Nothing runs again by itself.
        if round == 0 {
            assert_eq!(names(&client).await, ["before"]);
        }
        let given = client.give_back(None, PATIENCE).await.unwrap();
        assert_eq!((given.copies.len(), given.others), (2, 1), "{given:?}");
        assert!(given.entries >= 4 && given.lacking.is_empty());
        assert_eq!(names(&client).await, [AFTER, "before", "trips"]);
        assert_eq!(read(&client, AFTER).await, "is lost");
        assert_eq!(read(&client, PLAN).await, "is lost too");
        client.close(soon()).await.unwrap();
        // As if the process had been killed before it noted that it is done.
        let given_back = lab.home(1).directory().join(crate::home::GIVEN_BACK);
        std::fs::remove_file(given_back).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feed_of_another_epoch_is_told_to_look_again() {
    let lab = Lab::new();
    let start = written(&lab).await;
    let client = lab.client(1);
    let before = super::feed::now(&client).await;
    client.close(soon()).await.unwrap();
    let rules = lab.rules(start, true);
    lab.renew(&rules).await;
    follow(&lab, 1, &rules).unwrap();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    // The new log is soon as long as the one before.
    for number in 0..before.size {
        let call = create(&client, &number.to_string(), "x");
        done(client.call(call, soon()).await);
    }
    let feed = super::feed::ask(&client, Some(before), Duration::ZERO).await;
    let Feed::LookAgain { now } = feed else {
        panic!("{feed:?}");
    };
    assert!(now.size > before.size && now.epoch == before.epoch + 1);
}

/// The entries do not say what the file is called, so there is no copy. The user is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_content_of_a_file_that_stands_is_counted() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    for name in ["before", "other"] {
        done(client.call(create(&client, name, "stands"), soon()).await);
    }
    let start = client.status(soon()).await.unwrap().log;
    for content in ["is lost", "is lost too"] {
        super::tidy::write(&client, "before", content).await;
    }
    // This removal is a change of its own, and what was written before it is none.
    super::tidy::write(&client, "other", "is lost").await;
    let place = place(&client, "other");
    done(client.call(Call::Unlink { place }, soon()).await);
    // What was made and changed comes back as it was last.
    done(client.call(create(&client, "after", "new"), soon()).await);
    super::tidy::write(&client, "after", "newer").await;
    client.close(soon()).await.unwrap();
    let rules = lab.rules(start, true);
    lab.renew(&rules).await;
    follow(&lab, 1, &rules).unwrap();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let given = client.give_back(None, PATIENCE).await.unwrap();
    assert_eq!((given.copies.len(), given.others), (1, 2), "{given:?}");
    // The last change says the time.
    let after = "after (conflict device 0 1970-01-01)";
    assert_eq!(names(&client).await, [after, "before", "other"]);
    assert_eq!(read(&client, "before").await, "stands");
    assert_eq!(read(&client, after).await, "newer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_recovery_gives_back_what_the_first_one_had_not() {
    let mut lab = Lab::new();
    let start = written(&lab).await;
    lab.policies = lab.rules(start, true);
    lab.renew(&lab.policies).await;
    follow(&lab, 1, &lab.policies).unwrap();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    done(
        client
            .call(create(&client, "second", "is lost"), soon())
            .await,
    );
    client.close(soon()).await.unwrap();
    lab.policies = lab.rules(start, true);
    lab.renew(&lab.policies).await;
    assert_eq!(follow(&lab, 1, &lab.policies).unwrap(), Followed::Epoch(2));
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    assert_eq!(
        client.give_back(None, PATIENCE).await.unwrap().copies.len(),
        3
    );
    assert_eq!(names(&client).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_whose_log_does_not_begin_with_the_prefix_is_convicted_by_a_file() {
    let lab = Lab::new();
    let start = written(&lab).await;
    let rules = lab.rules(start, true);
    lab.renew(&rules).await;
    follow(&lab, 1, &rules).unwrap();
    let wire: Arc<hosted::Wire> = Arc::default();
    let volume = lab.volume;
    let lied = Arc::new(AtomicBool::new(false));
    let once = Arc::clone(&lied);
    *wire.lie.lock().unwrap() = Some(Box::new(move |reply| {
        if once.swap(true, Ordering::SeqCst) {
            return;
        }
        let leaves = (0..=start.size).map(|number| {
            let nonce = Nonce::from_bytes([number as u8 + 1; 32]);
            let tree = MarkTree::new(vec![nonce]).unwrap();
            Leaf::<Product>::Marks(Marks::new(tree.marks(), Vec::new()))
        });
        reply.leaves = leaves.collect();
        let mut log = trust::history::Frontier::new();
        for leaf in &reply.leaves {
            log.push_hash(Product::leaf_hash(leaf)).unwrap();
        }
        let log = LogPoint {
            epoch: 1,
            size: log.size(),
            root: log.root(),
        };
        reply.note = Note { log, time_ms: 1 }.sign(volume, &key(251));
    }));
    let client = lab.client_through(1, &wire);
    let error = client.running(soon()).await.unwrap_err();
    let ClientError::Stopped(Stopped::Convicted {
        evidence: Some(path),
        ..
    }) = error
    else {
        panic!("{error}");
    };
    // What it was shown is no state of the volume.
    let members = client.look(Call::Members, soon()).await;
    assert!(
        matches!(members, Err(ClientError::Stopped(_))),
        "{members:?}"
    );
    let verdict = verify(&std::fs::read(&path).unwrap()).unwrap();
    let orderer = Convicted::Orderer(key(251).public());
    assert_eq!((verdict.convicted, verdict.epoch), (orderer, 1));
    client.close(soon()).await.unwrap();
    // In the next epoch it stops nobody, and it is kept.
    let mut lab = lab;
    lab.policies = rules;
    let rules = lab.rules(start, true);
    lab.renew(&rules).await;
    assert_eq!(follow(&lab, 1, &rules).unwrap(), Followed::Epoch(2));
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    assert!(matches!(client.view().phase, Phase::Running));
    let kept = |path: &Path| {
        path.parent()
            .unwrap()
            .join("archive")
            .join(path.file_name().unwrap())
    };
    assert!(!path.exists() && kept(&path).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_signed_in_an_epoch_that_is_closed() {
    let lab = Lab::new();
    let start = written(&lab).await;
    let home = lab.home(1);
    let parts = Parts::of(&home, &Options::default()).unwrap();
    follow(&lab, 1, &lab.rules(start, true)).unwrap();
    // A process that has read the old rules, and was slower.
    let opened = parts.open(&home, soon());
    assert!(matches!(opened.err(), Some(ClientError::GoneOver)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_do_not_count_leave_the_device_where_it_is() {
    let lab = Lab::new();
    let start = written(&lab).await;
    let policies = lab.home(1).signed_policies().unwrap().len();
    // It has more, and the rules do not say that devices give it up.
    let refused = follow(&lab, 1, &lab.rules(start, false));
    assert!(
        matches!(refused, Err(HomeError::GivesUp { .. })),
        "{refused:?}"
    );
    let mut unsigned = lab.rules(start, true);
    let last = unsigned.pop().unwrap();
    unsigned.push(last.statement().clone().sign(&[&key(9)]));
    let refused = follow(&lab, 1, &unsigned);
    assert!(
        matches!(refused, Err(HomeError::Policies(_))),
        "{refused:?}"
    );
    assert_eq!(lab.home(1).signed_policies().unwrap().len(), policies);
    // The owners have signed two rules with one number.
    let empty = Prefix {
        size: 0,
        root: trust::history::Frontier::new().root(),
    };
    follow(&lab, 1, &lab.rules(start, true)).unwrap();
    let refused = follow(&lab, 1, &lab.rules(empty, true));
    assert!(
        matches!(refused, Err(HomeError::OtherPolicies)),
        "{refused:?}"
    );
}

/// Each step of going over is durable before the next one. A process that is killed between two of them leaves the old
/// epoch, and what it made is made anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn going_over_can_be_interrupted_at_each_step() {
    let lab = Lab::new();
    let start = written(&lab).await;
    let rules = lab.rules(start, true);
    lab.renew(&rules).await;
    let home = lab.home(1);
    let memory = home.memory(1);
    let half = |directory: &Path| {
        std::fs::create_dir(directory).unwrap();
        std::fs::write(directory.join("leaves"), "half").unwrap();
    };
    half(&memory.with_extension("new"));
    half(&memory);
    assert_eq!(home.policies().unwrap().newest_epoch().number, 0);
    let parts = Parts::of(&home, &Options::default()).unwrap();
    let core = parts.open(&home, soon()).unwrap();
    assert!(core.engine().ledger().size() > start.size);
    drop(core);
    assert_eq!(follow(&lab, 1, &rules).unwrap(), Followed::Epoch(1));
    assert!(!memory.with_extension("new").exists());
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let gone = look(&client, "after").await;
    assert_eq!(gone, Answer::Refused(Refused::NotFound));
}

/// The server gives bodies of more than 1 KiB only to who asks. What the device wrote is in its memory all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_body_of_an_own_entry_is_kept() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let start = client.status(soon()).await.unwrap().log;
    let target = Content::Symlink(Bytes::from(vec![b'x'; 3000]));
    let link = Call::Create {
        place: place(&client, "link"),
        number: client.new_number().unwrap(),
        inode: Box::new(Inode::new(0o777, inode("").mtime, target)),
        owner: None,
        replace: false.into(),
    };
    assert!(matches!(
        done(client.call(link, soon()).await),
        Answer::Done(_)
    ));
    client.close(soon()).await.unwrap();
    let rules = lab.rules(start, true);
    lab.renew(&rules).await;
    follow(&lab, 1, &rules).unwrap();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let given = client.give_back(None, PATIENCE).await.unwrap();
    assert_eq!((given.copies.len(), given.others), (1, 0), "{given:?}");
    assert_eq!(
        names(&client).await,
        ["link (conflict device 0 2023-11-14)"]
    );
}

/// If the server does not answer, the content is not lost: the device asks for it again later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_whose_content_does_not_come_now_comes_back_later() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let start = client.status(soon()).await.unwrap().log;
    let content = Bytes::from(vec![7; 100_000]);
    let handle = client.hasher().name(Kind::Data, &content);
    let frame = Packer::new().pack(Kind::Data, &content).unwrap();
    let record = trust::Record { handle, frame };
    client
        .sink(Duration::from_secs(30))
        .put(&[record])
        .await
        .unwrap();
    let content = Content::Regular(FileContent::Array(ArrayRoot {
        len: 100_000,
        height: 0,
        top: *handle.as_bytes(),
    }));
    let long = Call::Create {
        place: place(&client, "long"),
        number: client.new_number().unwrap(),
        inode: Box::new(Inode::new(0o644, inode("").mtime, content)),
        owner: None,
        replace: false.into(),
    };
    done(client.call(long, soon()).await);
    done(
        client
            .call(create(&client, "short", "is here"), soon())
            .await,
    );
    client.close(soon()).await.unwrap();
    let rules = lab.rules(start, true);
    lab.renew(&rules).await;
    follow(&lab, 1, &rules).unwrap();
    let wire: Arc<hosted::Wire> = Arc::default();
    wire.no_blocks.store(true, Ordering::SeqCst);
    let client = lab.client_through(1, &wire);
    client.running(soon()).await.unwrap();
    let late = client.give_back(None, Duration::from_secs(2)).await;
    assert!(
        matches!(late, Err(ClientError::Deadline { .. })),
        "{late:?}"
    );
    assert!(client.owes());
    let short = "short (conflict device 0 2023-11-14)";
    wire.no_blocks.store(false, Ordering::SeqCst);
    let given = client.give_back(None, PATIENCE).await.unwrap();
    assert_eq!(
        (given.copies.len(), given.lacking.len()),
        (2, 0),
        "{given:?}"
    );
    let long = "long (conflict device 0 2023-11-14)";
    assert_eq!(names(&client).await, [long, short]);
    assert!(!client.owes());
}

/// Other programs have the same policies to take: the first one goes on with the volume, and keeps the home's lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_late_does_not_wait_for_the_process_that_has_gone_over() {
    let lab = Lab::new();
    let start = written(&lab).await;
    let rules = lab.rules(start, true);
    let home = lab.home(1);
    // It waits while the old epoch is in use.
    let old = home.clone().idle(soon()).unwrap();
    let within = Duration::from_millis(400);
    let refused = home.follow(&rules, Instant::now() + within).unwrap_err();
    let HomeError::Disk(DiskError::State(StateError::Locked { waited_ms, .. })) = refused else {
        panic!("{refused}");
    };
    assert!(
        u128::from(waited_ms) >= within.as_millis(),
        "{waited_ms} ms"
    );
    let late = std::thread::spawn({
        let (home, rules) = (home.clone(), rules.clone());
        move || home.follow(&rules, soon()).unwrap()
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(!late.is_finished());
    old.follow(&rules).unwrap();
    // `running` has the lock until the test ends.
    let running = home.clone().idle(soon()).unwrap();
    assert_eq!(late.join().unwrap(), Followed::Known);
    let begun = Instant::now();
    assert_eq!(home.follow(&rules, soon()).unwrap(), Followed::Known);
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(running);
}

const HOME: &str = "BULLA_TEST_GOES_OVER";

/// The process that is killed in the test below.
#[test]
fn process_that_goes_over() {
    let Ok(at) = std::env::var(HOME) else {
        return;
    };
    let at = Path::new(&at);
    let rules = crate::home::decode_rules(&std::fs::read(at.join("rules")).unwrap()).unwrap();
    let home = Home::list(&at.join("machine 1")).unwrap().remove(0);
    std::fs::write(at.join("begins"), "").unwrap();
    home.follow(&rules, soon()).unwrap();
}

/// kill -9 at many moments of going over. The device is in one of the two epochs then, with what it had, and can go over
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_device_is_in_one_epoch_and_has_its_old_memory() {
    let lab = Lab::new();
    let start = written(&lab).await;
    let rules = lab.rules(start, true);
    let at = lab.dir.path();
    std::fs::write(at.join("rules"), crate::home::encode_rules(&rules)).unwrap();
    let (machine, kept) = (lab.machine(1), at.join("kept"));
    copied(&machine, &kept);
    let (mut old, mut new) = (0, 0);
    for round in 0..60 {
        std::fs::remove_dir_all(&machine).unwrap();
        copied(&kept, &machine);
        let begins = at.join("begins");
        let _ = std::fs::remove_file(&begins);
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "client::tests::epochs::process_that_goes_over"])
            .env(HOME, at)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while !begins.exists() {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(Duration::from_micros(round * 250));
        child.kill().unwrap();
        child.wait().unwrap();
        let home = lab.home(1);
        let parts = Parts::of(&home, &Options::default()).unwrap();
        let core = parts.open(&home, soon()).unwrap();
        let size = core.engine().ledger().size();
        drop(core);
        match home.policies().unwrap().newest_epoch().number {
            0 => {
                assert!(size > start.size, "{round}: {size}");
                old += 1;
            }
            _ => {
                assert_eq!(size, 0, "{round}");
                new += 1;
            }
        }
        home.follow(&rules, soon()).unwrap();
        assert_eq!(home.policies().unwrap().newest_epoch().number, 1);
        assert_eq!(home.earlier_memories(1), [home.memory(0)]);
        assert!(!home.memory(1).with_extension("new").exists());
    }
    assert!(old + new == 60 && old > 0, "{old} before, {new} after");
}

fn copied(from: &Path, to: &Path) {
    let mut copy = std::process::Command::new("cp");
    assert!(copy.arg("-a").args([from, to]).status().unwrap().success());
}
