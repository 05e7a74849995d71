//! A server that lies: what it signed becomes a file that anybody verifies, what it did not sign ends the connection.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use trust::history::{Frontier, LogPoint};
use trust_shared::evidence::{Convicted, verify};
use trust_shared::mark::{MarkTree, Nonce};
use trust_shared::note::{Note, SignedNote};

use super::*;
use crate::client::{Compared, Phase, Stopped, Trouble};
use ordering::engine::Reply;
use ordering::prefixes::Rfc6962;
use ordering::roster::{Product, lacks_decision};
use ordering::scheme::Leaf;
use ordering::signed::{Entry, Marks};
use trust_shared::entry::SignedEntry;

/// What a device was shown, as hashes; the liar goes on from there.
type Shown = Arc<Mutex<Vec<[u8; 32]>>>;

fn other_marks() -> Leaf<Product> {
    let tree = MarkTree::new(vec![Nonce::from_bytes([0xee; 32])]).unwrap();
    Leaf::Marks(Marks::new(tree.marks(), Vec::new()))
}

/// The orderer's note about these leaves.
fn note(hashes: &[[u8; 32]]) -> SignedNote {
    let mut log = Frontier::new();
    hashes.iter().for_each(|hash| log.push_hash(*hash).unwrap());
    let log = LogPoint {
        epoch: 0,
        size: log.size(),
        root: log.root(),
    };
    let note = Note { log, time_ms: 1 };
    note.sign(
        VolumeId::from_bytes(*VOLUME.get().unwrap().as_bytes()),
        &key(251),
    )
}

static VOLUME: std::sync::OnceLock<VolumeId> = std::sync::OnceLock::new();

/// Remembers what is shown; once `ready`, makes something else of a reply.
fn liar(
    ready: Arc<AtomicBool>,
    shown: Shown,
    lie: impl Fn(&mut Reply<Product>, &[[u8; 32]]) + Send + 'static,
) -> hosted::Lie {
    Box::new(move |reply| {
        let mut shown = shown.lock().unwrap();
        shown.truncate(reply.from as usize);
        let old = shown.clone();
        shown.extend(reply.leaves.iter().map(Product::leaf_hash));
        if ready.load(Ordering::SeqCst) && !reply.leaves.is_empty() {
            lie(reply, &old);
        }
    })
}

/// Starts a device, and lets the server lie when it writes.
async fn lied_to(
    lab: &Lab,
    lie: impl Fn(&mut Reply<Product>, &[[u8; 32]]) + Send + 'static,
) -> (Client, Result<Answered, ClientError>) {
    VOLUME.get_or_init(|| lab.volume);
    let wire: Arc<hosted::Wire> = Arc::default();
    let (ready, shown) = (Arc::default(), Shown::default());
    *wire.lie.lock().unwrap() = Some(liar(Arc::clone(&ready), Arc::clone(&shown), lie));
    let client = lab.client_through(1, &wire);
    client.running(soon()).await.unwrap();
    done(client.call(create(&client, "true", "x"), soon()).await);
    ready.store(true, Ordering::SeqCst);
    let answer = client.call(create(&client, "next", "y"), soon()).await;
    (client, answer)
}

/// The file that an error names convicts the orderer, and does not when one byte differs.
fn convicts(error: &ClientError) {
    let ClientError::Stopped(Stopped::Convicted {
        evidence: Some(path),
        ..
    }) = error
    else {
        panic!("{error}");
    };
    assert!(error.to_string().contains("bulla share check"), "{error}");
    let bytes = std::fs::read(path).unwrap();
    let verdict = verify(&bytes).unwrap();
    assert_eq!(verdict.convicted, Convicted::Orderer(key(251).public()));
    for at in (0..bytes.len()).step_by(7) {
        let mut other = bytes.clone();
        other[at] ^= 1;
        assert!(verify(&other).is_err(), "{at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_replaces_the_last_leaf_is_convicted_by_a_file() {
    let lab = Lab::new();
    let (client, answer) = lied_to(&lab, |reply, old| {
        let mut other = old.to_vec();
        other.pop();
        reply.from -= 1;
        reply.leaves = vec![other_marks(), other_marks()];
        other.extend(reply.leaves.iter().map(Product::leaf_hash));
        reply.note = note(&other);
    })
    .await;
    convicts(&answer.unwrap_err());
    assert!(matches!(client.view().phase, Phase::Stopped(_)));
    let later = client.call(create(&client, "later", "z"), soon()).await;
    convicts(&later.unwrap_err());
    // What it had verified stays readable.
    let lookup = |name| Call::Lookup {
        place: place(&client, name),
        follow: true,
    };
    let found = done(client.look(lookup("true"), soon()).await);
    assert!(matches!(found, Answer::Found(_)), "{found:?}");
    let absent = done(client.look(lookup("next"), soon()).await);
    assert_eq!(absent, Answer::Refused(crate::files::Refused::NotFound));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_signs_a_shorter_log_is_convicted_by_a_file() {
    let lab = Lab::new();
    let (_client, answer) = lied_to(&lab, |reply, old| {
        let mut other = old.to_vec();
        other.truncate(2);
        other.push(Product::leaf_hash(&other_marks()));
        reply.from = 2;
        reply.leaves = vec![other_marks()];
        reply.note = note(&other);
    })
    .await;
    convicts(&answer.unwrap_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_orders_a_forged_entry_is_convicted_by_a_file() {
    let lab = Lab::new();
    let (_client, answer) = lied_to(&lab, |reply, old| {
        for leaf in &mut reply.leaves {
            if let Leaf::Entry(entry) = leaf {
                *leaf = forged(entry);
            }
        }
        let new = reply.leaves.iter().map(Product::leaf_hash);
        let other: Vec<_> = old.iter().copied().chain(new).collect();
        reply.note = note(&other);
    })
    .await;
    convicts(&answer.unwrap_err());
}

/// An entry with another signature.
fn forged(entry: &Entry) -> Leaf<Product> {
    let mut bytes = entry.signed().bytes().to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    Leaf::Entry(Entry::new(SignedEntry::decode(bytes.into()).unwrap()))
}

/// Once `ready`, shows the next entry of device 2 with another signature, in a page after which more would come, and
/// then nothing new.
pub(super) fn forger(volume: VolumeId, ready: Arc<AtomicBool>) -> hosted::Lie {
    VOLUME.get_or_init(|| volume);
    let two = DeviceKey::from(&key(2).public());
    let (mut shown, mut end) = (Vec::new(), None);
    Box::new(move |reply| {
        if let Some((size, note)) = end {
            (reply.from, reply.note) = (size, note);
            reply.leaves.clear();
            reply.attests.clear();
            (reply.more, reply.asked) = (true, false);
            return;
        }
        let ready = ready.load(Ordering::SeqCst);
        for leaf in &mut reply.leaves {
            if let Leaf::Entry(entry) = leaf
                && ready
                && entry.signed().entry().device == two
            {
                *leaf = forged(entry);
                reply.more = true;
            }
        }
        shown.truncate(reply.from as usize);
        shown.extend(reply.leaves.iter().map(Product::leaf_hash));
        if ready && reply.more {
            reply.note = note(&shown);
            reply.asked = false;
            end = Some((shown.len() as u64, reply.note));
        }
    })
}

/// Device 1, to which the server shows a forged entry of device 2, and the size of its view before that.
pub(super) async fn forged_for(lab: &Lab, options: &Options) -> (Client, u64) {
    let wire: Arc<hosted::Wire> = Arc::default();
    let ready = Arc::new(AtomicBool::new(false));
    *wire.lie.lock().unwrap() = Some(forger(lab.volume, Arc::clone(&ready)));
    let one = lab.client_with(1, &wire, options);
    one.running(soon()).await.unwrap();
    lab.admit(&one, 2).await;
    let two = lab.client(2);
    two.running(soon()).await.unwrap();
    // The first entry of a device is looked at when it comes. The next one is forged.
    done(one.call(create(&one, "true", "x"), soon()).await);
    let before = one.view().size;
    ready.store(true, Ordering::SeqCst);
    done(two.call(create(&two, "next", "y"), soon()).await);
    (one, before)
}

/// The device has written the page down before it looks at the signature. The floor is what proves it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_entry_in_a_page_is_proved_from_the_floor() {
    let lab = Lab::new();
    let (one, before) = forged_for(&lab, &Options::default()).await;
    one.wait(soon(), |view| view.size > before).await.unwrap();
    let answer = one.call(create(&one, "later", "z"), soon()).await;
    convicts(&answer.unwrap_err());
    // The page is in what the device has: nothing is read from it, after a restart neither.
    let lookup = |client: &Client| Call::Lookup {
        place: place(client, "next"),
        follow: true,
    };
    convicts(&one.look(lookup(&one), soon()).await.unwrap_err());
    one.close(soon()).await.unwrap();
    let one = lab.client(1);
    convicts(&one.look(lookup(&one), soon()).await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_orders_an_entry_twice_is_convicted_by_a_file() {
    let lab = Lab::new();
    let (_client, answer) = lied_to(&lab, |reply, old| {
        let again = reply
            .leaves
            .iter()
            .find(|leaf| matches!(leaf, Leaf::Entry(_)));
        if let Some(again) = again.cloned() {
            reply.leaves.push(again);
        }
        let new = reply.leaves.iter().map(Product::leaf_hash);
        let other: Vec<_> = old.iter().copied().chain(new).collect();
        reply.note = note(&other);
    })
    .await;
    convicts(&answer.unwrap_err());
}

/// A key that signed two entries of one number, and a server that orders both: each is convicted by a file of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_entries_of_one_number_convict_their_device_too() {
    let lab = Lab::new();
    let (_client, answer) = lied_to(&lab, |reply, old| {
        let volume = *VOLUME.get().unwrap();
        let ops = reply.leaves.iter().find_map(|leaf| match leaf {
            Leaf::Entry(entry) => Some(entry.signed().entry().clone()),
            Leaf::Marks(_) => None,
        });
        if let Some(mut twin) = ops {
            twin.kept = u64::from(twin.kept == 0);
            let signed = twin.sign(volume, &key(1)).unwrap();
            reply.leaves.push(Leaf::Entry(Entry::new(signed)));
        }
        let new = reply.leaves.iter().map(Product::leaf_hash);
        let other: Vec<_> = old.iter().copied().chain(new).collect();
        reply.note = note(&other);
    })
    .await;
    let error = answer.unwrap_err();
    convicts(&error);
    let ClientError::Stopped(Stopped::Convicted { evidence, .. }) = error else {
        unreachable!()
    };
    let directory = evidence.unwrap().parent().unwrap().to_owned();
    let files = std::fs::read_dir(directory).unwrap();
    let files = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let convicted: Vec<Convicted> = files.map(|file| verify(&file).unwrap().convicted).collect();
    let device = Convicted::Device(DeviceKey::from(&key(1).public()));
    assert!(convicted.contains(&device), "{convicted:?}");
    assert_eq!(convicted.len(), 2, "{convicted:?}");
}

/// The device signed the entry for the other branch of a fork, where its prefix has another root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_orders_an_entry_of_another_log_is_convicted_by_a_file() {
    let lab = Lab::new();
    let (_client, answer) = lied_to(&lab, |reply, old| {
        let volume = *VOLUME.get().unwrap();
        for leaf in &mut reply.leaves {
            if let Leaf::Entry(entry) = leaf {
                let mut elsewhere = entry.signed().entry().clone();
                elsewhere.seen.root = [4; 32];
                let signed = elsewhere.sign(volume, &key(1)).unwrap();
                *leaf = Leaf::Entry(Entry::new(signed));
            }
        }
        let new = reply.leaves.iter().map(Product::leaf_hash);
        let other: Vec<_> = old.iter().copied().chain(new).collect();
        reply.note = note(&other);
    })
    .await;
    convicts(&answer.unwrap_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsigned_nonsense_ends_the_connection_and_honest_answers_end_the_trouble() {
    let lab = Lab::new();
    let wire: Arc<hosted::Wire> = Arc::default();
    let client = lab.client_through(1, &wire);
    client.running(soon()).await.unwrap();
    *wire.lie.lock().unwrap() = Some(Box::new(|reply| {
        if !reply.leaves.is_empty() {
            reply.leaves[0] = other_marks();
        }
    }));
    let late = Instant::now() + Duration::from_millis(700);
    let error = client
        .call(create(&client, "a", "x"), late)
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Deadline { .. }), "{error}");
    let view = client.view();
    let unfit =
        matches!(&view.connection, Connection::Offline(lost) if lost.trouble == Trouble::Unfit);
    assert!(unfit || view.connection == Connection::Online, "{view:?}");
    *wire.lie.lock().unwrap() = None;
    done(client.call(create(&client, "b", "y"), soon()).await);
    assert_eq!(read(&client, "b").await, "y");
}

/// Once, the last decision about members comes without its body, after leaves that are right.
fn without_a_body(told: Arc<AtomicBool>) -> hosted::Lie {
    use Ordering::SeqCst;
    Box::new(move |reply| {
        let unread = |leaf: &Leaf<Product>| match leaf {
            Leaf::Entry(entry) => Some(Entry::new(entry.signed().clone())).filter(lacks_decision),
            Leaf::Marks(_) => None,
        };
        let mut leaves = reply.leaves.iter_mut().rev();
        if told.load(SeqCst) {
            return;
        }
        if let Some((leaf, entry)) = leaves.find_map(|leaf| unread(leaf).map(|one| (leaf, one))) {
            *leaf = Leaf::Entry(entry);
            told.store(true, SeqCst);
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_starts_again_after_a_reply_that_lacked_a_body() {
    let lab = Lab::new();
    let one = lab.client(1);
    one.running(soon()).await.unwrap();
    lab.admit(&one, 2).await;
    lab.admit(&one, 3).await;
    let (wire, told): (Arc<hosted::Wire>, _) = Default::default();
    *wire.lie.lock().unwrap() = Some(without_a_body(Arc::clone(&told)));
    let two = lab.client_through(2, &wire);
    two.running(soon()).await.unwrap();
    assert!(told.load(Ordering::SeqCst));
    done(two.call(create(&two, "a", "x"), soon()).await);
    two.close(soon()).await.unwrap();
    let two = lab.client(2);
    two.running(soon()).await.unwrap();
    assert_eq!(read(&two, "a").await, "x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_withholds_everything_gets_an_error_at_the_deadline() {
    let lab = Lab::new();
    let wire: Arc<hosted::Wire> = Arc::default();
    let client = lab.client_through(1, &wire);
    client.running(soon()).await.unwrap();
    done(client.call(create(&client, "a", "x"), soon()).await);
    *wire.lie.lock().unwrap() = Some(Box::new(|reply| {
        // Its note of long ago, again and again.
        reply.leaves.clear();
        reply.note = note(&[]);
        reply.from = 0;
    }));
    VOLUME.get_or_init(|| lab.volume);
    let late = Instant::now() + Duration::from_millis(500);
    let place = place(&client, "a");
    let stale = client
        .call(
            Call::Lookup {
                place,
                follow: true,
            },
            late,
        )
        .await;
    assert!(
        matches!(stale, Err(ClientError::Deadline { .. })),
        "{stale:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notes_of_two_devices_are_compared_and_a_fork_becomes_a_file() {
    let lab = Lab::new();
    VOLUME.get_or_init(|| lab.volume);
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    for name in ["a", "b", "c"] {
        done(client.call(create(&client, name, "x"), soon()).await);
    }
    let status = client.status(soon()).await.unwrap();
    let same = client.compare(status.note.unwrap(), soon()).await.unwrap();
    assert!(matches!(same, Compared::Same { .. }), "{same:?}");
    let forked = note(&[[1; 32], [2; 32]]);
    let found = client.compare(forked, soon()).await.unwrap();
    let Compared::Fork { evidence: Ok(path) } = found else {
        panic!("{found:?}");
    };
    verify(&std::fs::read(path).unwrap()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_that_has_proof_of_a_fork_writes_no_more_after_a_restart_either() {
    let lab = Lab::new();
    VOLUME.get_or_init(|| lab.volume);
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    done(client.call(create(&client, "a", "x"), soon()).await);
    let evidence = lab.home(1).directory().join("evidence");
    std::fs::create_dir_all(&evidence).unwrap();
    std::fs::write(evidence.join("nonsense"), b"proves nothing").unwrap();
    client.close(soon()).await.unwrap();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    done(client.call(create(&client, "b", "x"), soon()).await);
    let forked = note(&[[1; 32], [2; 32]]);
    let found = client.compare(forked, soon()).await.unwrap();
    assert!(matches!(found, Compared::Fork { .. }), "{found:?}");
    convicts(
        &client
            .call(create(&client, "c", "x"), soon())
            .await
            .unwrap_err(),
    );
    client.close(soon()).await.unwrap();
    let client = lab.client(1);
    convicts(&client.running(soon()).await.unwrap_err());
    convicts(
        &client
            .call(create(&client, "c", "x"), soon())
            .await
            .unwrap_err(),
    );
    let lookup = |name| Call::Lookup {
        place: place(&client, name),
        follow: true,
    };
    let found = done(client.look(lookup("b"), soon()).await);
    assert!(matches!(found, Answer::Found(_)), "{found:?}");
}

/// A member can sign any number of entries twice, each of which is a file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proof_of_a_fork_is_kept_beside_as_many_other_files_as_there_may_be() {
    let lab = Lab::new();
    VOLUME.get_or_init(|| lab.volume);
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    done(client.call(create(&client, "a", "x"), soon()).await);
    let evidence = lab.home(1).directory().join("evidence");
    std::fs::create_dir_all(&evidence).unwrap();
    (0..64).for_each(|n| std::fs::write(evidence.join(n.to_string()), b"none").unwrap());
    let forked = note(&[[1; 32], [2; 32]]);
    let found = client.compare(forked, soon()).await.unwrap();
    let Compared::Fork { evidence: Ok(path) } = &found else {
        panic!("{found:?}");
    };
    assert!(path.exists());
    // One is enough.
    let another = note(&[[1; 32], [3; 32]]);
    let found = client.compare(another, soon()).await.unwrap();
    let is_kept = matches!(found, Compared::Fork { evidence: Err(_) });
    assert!(is_kept, "{found:?}");
    client.close(soon()).await.unwrap();
    let client = lab.client(1);
    convicts(&client.running(soon()).await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn note_that_is_ahead_or_that_nobody_signed_convicts_nobody() {
    let lab = Lab::new();
    VOLUME.get_or_init(|| lab.volume);
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let status = client.status(soon()).await.unwrap();
    let ahead = note(&vec![[1; 32]; 5000]);
    let late = Instant::now() + Duration::from_secs(1);
    let found = client.compare(ahead, late).await.unwrap();
    assert!(matches!(found, Compared::Behind { .. }), "{found:?}");
    let log = *status.note.unwrap().note();
    let unsigned = log.sign(lab.volume, &key(3));
    let found = client.compare(unsigned, soon()).await.unwrap();
    assert_eq!(found, Compared::NotSigned);
    done(client.call(create(&client, "a", "x"), soon()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_that_was_invited_to_another_log_writes_nothing() {
    let lab = Lab::new();
    let one = lab.client(1);
    one.running(soon()).await.unwrap();
    lab.admit(&one, 2).await;
    let begins = LogPoint {
        epoch: 0,
        size: 2,
        root: [9; 32],
    };
    lab.home_that_begins(2, Some(begins));
    let two = lab.client(2);
    let error = two.running(soon()).await.unwrap_err();
    assert!(
        matches!(error, ClientError::Stopped(Stopped::OtherBeginning)),
        "{error}"
    );
    let status = two.status(soon()).await.unwrap();
    two.close(soon()).await.unwrap();
    assert!(matches!(status.phase, Phase::Stopped(_)));
    let home = lab.home(2);
    let options = Options::default();
    let core = Parts::of(&home, &options)
        .unwrap()
        .open(&home, soon())
        .unwrap();
    assert_eq!(core.engine().ledger().size(), 0, "nothing of it was kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_of_another_entry_is_not_used_and_the_right_one_is_asked_for_again() {
    let lab = Lab::new();
    let wire: Arc<hosted::Wire> = Arc::default();
    let (one, two) = (lab.client(1), lab.client_through(2, &wire));
    one.running(soon()).await.unwrap();
    lab.admit(&one, 2).await;
    two.running(soon()).await.unwrap();
    // Too long to come with its entry.
    let target = Bytes::from(vec![b'x'; 3000]);
    let link = Call::Create {
        place: place(&one, "link"),
        number: one.new_number().unwrap(),
        inode: Box::new(Inode::new(0o777, inode("").mtime, Content::Symlink(target))),
        owner: None,
        replace: false.into(),
    };
    assert!(matches!(
        done(one.call(link, soon()).await),
        Answer::Done(_)
    ));
    wire.wrong_bodies.store(true, Ordering::SeqCst);
    let lookup = || Call::Lookup {
        place: place(&two, "link"),
        follow: false,
    };
    let began = Instant::now();
    while wire.bodies.load(Ordering::SeqCst) == 0 {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "no body is fetched"
        );
        let late = Instant::now() + Duration::from_millis(400);
        let error = two.call(lookup(), late).await.unwrap_err();
        assert!(matches!(error, ClientError::Deadline { .. }), "{error}");
    }
    wire.wrong_bodies.store(false, Ordering::SeqCst);
    let found = done(two.call(lookup(), soon()).await);
    let Answer::Found(file) = found else {
        panic!("{found:?}");
    };
    assert_eq!(file.inode.size, 3000);
    two.close(soon()).await.unwrap();
    // A restart has the log and fetches the body again.
    let two = lab.client(2);
    let place = place(&two, "link");
    let found = two
        .call(
            Call::Lookup {
                place,
                follow: false,
            },
            soon(),
        )
        .await;
    assert!(matches!(done(found), Answer::Found(_)));
}
