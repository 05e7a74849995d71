//! Devices that begin with a checkpoint, and checkpointers that make one.

use trust::statement::Signed;
use trust_shared::checkpoint::Checkpoint;
use trust_shared::note::SignedNote;

use super::*;
use crate::client::begin::begin_over;
use crate::client::{Begun, Compared, Signable, Stopped};
use crate::disk::Closed;
use crate::files::{Cursor, Feed};
use trust_shared::checkpoint::Posted;

const PATIENCE: Duration = Duration::from_secs(60);

impl Lab {
    /// A volume whose checkpoints need so many signatures of these machines' devices.
    fn checkpointed(needed: u8, machines: &[u8]) -> Lab {
        let keys = machines.iter().map(|machine| key(*machine).public());
        let role = Threshold::new(needed, keys.collect()).unwrap();
        Lab::founded(Silence::Strict, 60_000, role)
    }

    /// A new machine begins, as one that trusts a device of its own user.
    async fn begin(&self, machine: u8, own: Option<u8>) -> Result<Begun, ClientError> {
        self.begin_through(machine, own, &Arc::default()).await
    }

    async fn begin_through(
        &self,
        machine: u8,
        own: Option<u8>,
        wire: &Arc<hosted::Wire>,
    ) -> Result<Begun, ClientError> {
        let home = self.home(machine);
        let own = own.map(|own| key(own).public());
        let dial = Hosted {
            door: Arc::clone(&self.door),
            device: DeviceKey::from(&key(machine).public()),
            wire: Arc::clone(wire),
        };
        let policies = home.policies().unwrap();
        begin_over(&home, &policies, own.as_ref(), &dial, soon()).await
    }

    /// The state of a machine's log as it is now, stored at the server, and the note of that log.
    async fn state(&self, machine: u8, client: &Client) -> (Checkpoint, SignedNote) {
        let signable = client.signable(None, soon()).await.unwrap();
        let Signable::Yes(note) = signable else {
            panic!("{signable:?}");
        };
        let size = note.note().log.size;
        let home = self.home(machine);
        let state = client.state_at(&home, size, true, PATIENCE, |_| ());
        (state.await.unwrap(), *note)
    }

    /// A checkpoint of the log as it is now, signed by these machines' devices, at the server.
    async fn checkpoint(&self, machine: u8, client: &Client, by: &[u8]) -> Checkpoint {
        let (checkpoint, note) = self.state(machine, client).await;
        self.post(client, &checkpoint, note, by).await.unwrap();
        checkpoint
    }

    async fn post(
        &self,
        client: &Client,
        checkpoint: &Checkpoint,
        note: SignedNote,
        by: &[u8],
    ) -> Result<Signed, ClientError> {
        let keys: Vec<_> = by.iter().map(|machine| key(*machine)).collect();
        let signed = checkpoint
            .statement(self.volume)
            .sign(&keys.iter().collect::<Vec<_>>());
        let posted = Posted {
            note,
            signed: signed.clone(),
        };
        client.post_checkpoint(&posted, soon()).await?;
        Ok(signed)
    }
}

async fn running(lab: &Lab, machine: u8) -> Client {
    let client = lab.client(machine);
    client.running(soon()).await.unwrap();
    client
}

/// Two devices that have written, the second one as a member.
async fn pair(lab: &Lab) -> (Client, Client) {
    let one = running(lab, 1).await;
    lab.admit(&one, 2).await;
    let two = running(lab, 2).await;
    for name in ["a", "b", "c"] {
        done(one.call(create(&one, name, name), soon()).await);
        let name = format!("{name} of two");
        done(two.call(create(&two, &name, &name), soon()).await);
    }
    (one, two)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_device_begins_with_a_checkpoint_and_works_with_the_others() {
    let lab = Lab::checkpointed(2, &[1, 2]);
    let (one, two) = pair(&lab).await;
    let (checkpoint, note) = lab.state(1, &one).await;
    let size = checkpoint.log.size;
    // The other checkpointer replayed the same, although it has more of the log by now.
    done(one.call(create(&one, "later", "later"), soon()).await);
    assert_eq!(read(&two, "later").await, "later");
    let home = lab.home(2);
    let same = two.state_at(&home, size, false, PATIENCE, |_| ()).await;
    assert_eq!(same.unwrap(), checkpoint);
    lab.post(&one, &checkpoint, note, &[1, 2]).await.unwrap();
    lab.admit(&one, 3).await;
    assert_eq!(
        lab.begin(3, None).await.unwrap(),
        Begun::Checkpoint { size }
    );
    let three = lab.client_with(3, &Arc::default(), &snapshots::often(1));
    three.running(soon()).await.unwrap();
    assert_eq!(three.status(soon()).await.unwrap().begins, size);
    for name in ["a", "b", "c", "later"] {
        assert_eq!(read(&three, name).await, name);
    }
    assert_eq!(read(&three, "c of two").await, "c of two");
    done(three.call(create(&three, "of three", "3"), soon()).await);
    assert_eq!(read(&two, "of three").await, "3");
    // It begins once. A restart has what it had, also after the server is gone, and reads its snapshot.
    three.close(soon()).await.unwrap();
    assert!(!snapshots::reads_all(&lab.home(3)));
    assert_eq!(
        lab.begin(3, None).await.unwrap(),
        Begun::Checkpoint { size }
    );
    let three = running(&lab, 3).await;
    assert_eq!(three.status(soon()).await.unwrap().begins, size);
    assert_eq!(read(&three, "of three").await, "3");
    // All three come to the same state.
    let (newer, _) = lab.state(1, &one).await;
    let at = newer.log.size;
    let caught_up = |client: &Client| client.view().size >= at;
    eventually("all have the log", || caught_up(&two) && caught_up(&three)).await;
    for (machine, client) in [(2, &two), (3, &three)] {
        let home = lab.home(machine);
        let state = client.state_at(&home, at, false, PATIENCE, |_| ());
        assert_eq!(state.await.unwrap(), newer, "{machine}");
    }
    let home = lab.home(3);
    let early = three.state_at(&home, size - 1, false, PATIENCE, |_| ());
    assert!(matches!(early.await, Err(ClientError::Unsupported(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_of_one_device_counts_for_who_names_its_key() {
    let lab = Lab::checkpointed(1, &[1]);
    let (one, _two) = pair(&lab).await;
    lab.admit(&one, 3).await;
    let none = lab.begin(3, None).await.unwrap();
    assert!(matches!(none, Begun::Replay { why: Some(_) }), "{none:?}");
    let checkpoint = lab.checkpoint(1, &one, &[1]).await;
    let size = checkpoint.log.size;
    for own in [None, Some(2), Some(9)] {
        let begun = lab.begin(3, own).await.unwrap();
        assert!(matches!(begun, Begun::Replay { why: Some(_) }), "{own:?}");
    }
    assert_eq!(
        lab.begin(3, Some(1)).await.unwrap(),
        Begun::Checkpoint { size }
    );
    // The device does not have the leaves before the checkpoint, so it cannot say what they changed.
    let three = running(&lab, 3).await;
    let now = feed::now(&three).await;
    for (size, is_known) in [(size - 1, false), (size, true)] {
        let feed = feed::ask(&three, Some(Cursor { size, ..now }), Duration::ZERO).await;
        assert_eq!(matches!(feed, Feed::Changes { .. }), is_known, "{feed:?}");
    }
    // A device that has begun with the first leaf goes on so.
    one.close(soon()).await.unwrap();
    assert_eq!(
        lab.begin(1, Some(1)).await.unwrap(),
        Begun::Replay { why: None }
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_keeps_checkpoints_of_checkpointers_only() {
    let lab = Lab::checkpointed(2, &[1, 2]);
    let (one, two) = pair(&lab).await;
    let (checkpoint, note) = lab.state(1, &one).await;
    // Signed by nobody of them; about another log; without the orderer's note.
    assert!(lab.post(&two, &checkpoint, note, &[9]).await.is_err());
    let mut other = checkpoint;
    other.log.root = [9; 32];
    assert!(lab.post(&two, &other, note, &[1, 2]).await.is_err());
    let forged = note.note().sign(lab.volume, &key(1));
    assert!(lab.post(&two, &checkpoint, forged, &[1, 2]).await.is_err());
    assert_eq!(one.checkpoints(soon()).await.unwrap(), []);
    let half = lab.post(&one, &checkpoint, note, &[1]).await.unwrap();
    let kept = two.checkpoints(soon()).await.unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].signed, half);
    // One signature is not enough, and it stays so after a restart of the server.
    lab.admit(&one, 3).await;
    let begun = lab.begin(3, None).await.unwrap();
    assert!(matches!(begun, Begun::Replay { why: Some(_) }), "{begun:?}");
    let mut whole = kept[0].clone();
    whole.signed.add(&key(2));
    two.post_checkpoint(&whole, soon()).await.unwrap();
    lab.door.close();
    offline(&one).await;
    lab.serve();
    one.running(soon()).await.unwrap();
    // A newer one that is not whole does not take the place of the whole one.
    done(one.call(create(&one, "later", "later"), soon()).await);
    lab.checkpoint(1, &one, &[1]).await;
    assert_eq!(one.checkpoints(soon()).await.unwrap().len(), 2);
    let size = checkpoint.log.size;
    assert_eq!(
        lab.begin(3, None).await.unwrap(),
        Begun::Checkpoint { size }
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpointer_waits_for_a_silent_device() {
    let lab = Lab::checkpointed(1, &[1]);
    let (one, two) = pair(&lab).await;
    let wire: Arc<hosted::Wire> = Arc::default();
    two.close(soon()).await.unwrap();
    let options = Options {
        attest_after: Duration::from_secs(3600),
        ..Options::default()
    };
    let two = lab.client_with(2, &wire, &options);
    two.running(soon()).await.unwrap();
    done(two.call(create(&two, "last", "last"), soon()).await);
    // It is gone before anybody has asked it.
    two.close(soon()).await.unwrap();
    let size = lab.door.size();
    eventually("one has the entry", || one.view().size >= size).await;
    // Longer than it takes until the entry is durable in the floor.
    let late = Instant::now() + Duration::from_secs(3);
    let Signable::Silent(status) = one.signable(None, late).await.unwrap() else {
        panic!("nobody speaks for the entry");
    };
    let silent: Vec<_> = status
        .unsupported
        .iter()
        .map(|(device, _)| *device)
        .collect();
    assert_eq!(silent, [DeviceKey::from(&key(2).public())]);
    let two = running(&lab, 2).await;
    let signable = one.signable(None, soon()).await.unwrap();
    assert!(matches!(signable, Signable::Yes(_)), "{signable:?}");
    drop(two);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_a_server_changes_are_not_used() {
    let lab = Lab::checkpointed(1, &[1]);
    let (one, _two) = pair(&lab).await;
    let checkpoint = lab.checkpoint(1, &one, &[1]).await;
    lab.admit(&one, 3).await;
    for lie in [hosted::WrongBlocks::Changed, hosted::WrongBlocks::Missing] {
        let wire: Arc<hosted::Wire> = Arc::default();
        *wire.wrong_blocks.lock().unwrap() = Some(lie);
        let begun = lab.begin_through(3, Some(1), &wire).await;
        let refused = matches!(&begun, Ok(Begun::Replay { why: Some(_) }) | Err(_));
        assert!(refused, "{begun:?}");
    }
    // The connection breaks at each message: there is a whole start, or none.
    for messages in 0.. {
        let wire: Arc<hosted::Wire> = Arc::default();
        wire.break_after(messages);
        let begun = lab.begin_through(3, Some(1), &wire).await;
        let start = lab.home(3).directory().join("start");
        match begun {
            Err(_) => assert!(!start.exists()),
            Ok(begun) => {
                let size = checkpoint.log.size;
                assert_eq!(begun, Begun::Checkpoint { size });
                assert!(start.exists() && messages > 2);
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_that_is_not_of_the_invitations_log_is_refused() {
    let lab = Lab::checkpointed(1, &[1]);
    let (one, _two) = pair(&lab).await;
    let checkpoint = lab.checkpoint(1, &one, &[1]).await;
    lab.admit(&one, 3).await;
    let begins = |root| LogPoint {
        size: checkpoint.log.size,
        root,
        epoch: 0,
    };
    lab.home_that_begins(3, Some(begins([9; 32])));
    let refused = lab.begin(3, Some(1)).await;
    let other = matches!(refused, Err(ClientError::Stopped(Stopped::OtherBeginning)));
    assert!(other, "{refused:?}");
    lab.admit(&one, 4).await;
    lab.home_that_begins(4, Some(begins(checkpoint.log.root)));
    assert!(matches!(
        lab.begin(4, Some(1)).await,
        Ok(Begun::Checkpoint { .. })
    ));
    let four = running(&lab, 4).await;
    assert_eq!(read(&four, "a").await, "a");
    // One that the invitation reaches beyond: the engine compares it.
    lab.admit(&one, 5).await;
    let beyond = LogPoint {
        size: checkpoint.log.size + 1,
        root: [9; 32],
        epoch: 0,
    };
    lab.home_that_begins(5, Some(beyond));
    lab.begin(5, Some(1)).await.unwrap();
    let error = lab.client(5).running(soon()).await.unwrap_err();
    let other = matches!(error, ClientError::Stopped(Stopped::OtherBeginning));
    assert!(other, "{error}");
}

/// The server shows the new device a log that does not continue the checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_that_does_not_continue_the_checkpoint_convicts_the_server() {
    let lab = Lab::checkpointed(1, &[1]);
    let (one, _two) = pair(&lab).await;
    lab.admit(&one, 3).await;
    let checkpoint = lab.checkpoint(1, &one, &[1]).await;
    lab.begin(3, Some(1)).await.unwrap();
    let wire: Arc<hosted::Wire> = Arc::default();
    let (volume, size) = (lab.volume, checkpoint.log.size);
    *wire.lie.lock().unwrap() = Some(Box::new(move |reply| {
        // Another log of the same length.
        let mut other = *reply.note.note();
        other.log.size = size;
        other.log.root = [7; 32];
        (reply.from, reply.more) = (size, false);
        reply.leaves.clear();
        reply.note = other.sign(volume, &key(251));
    }));
    let three = lab.client_through(3, &wire);
    let error = three.running(soon()).await.unwrap_err();
    let ClientError::Stopped(Stopped::Convicted { evidence, .. }) = error else {
        panic!("{error}");
    };
    let file = std::fs::read(evidence.unwrap()).unwrap();
    trust_shared::evidence::verify(&file).unwrap();
    // What it began with stays readable.
    let lookup = Call::Lookup {
        place: place(&three, "a"),
        follow: true,
    };
    let found = done(three.look(lookup, soon()).await);
    assert!(matches!(found, Answer::Found(_)), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_that_began_late_compares_what_it_can() {
    let lab = Lab::checkpointed(1, &[1]);
    let (one, _two) = pair(&lab).await;
    let early = one.status(soon()).await.unwrap().note.unwrap();
    done(one.call(create(&one, "d", "d"), soon()).await);
    lab.checkpoint(1, &one, &[1]).await;
    lab.admit(&one, 3).await;
    lab.begin(3, Some(1)).await.unwrap();
    let three = running(&lab, 3).await;
    // The hashes of the last leaves before the checkpoint are here, so earlier notes can be compared too.
    let same = three.compare(early, soon()).await.unwrap();
    let size = early.note().log.size;
    assert_eq!(same, Compared::Same { size });
    let mut forked = *early.note();
    forked.log.root = [9; 32];
    let forked = forked.sign(lab.volume, &key(251));
    let found = three.compare(forked, soon()).await.unwrap();
    let Compared::Fork { evidence: Ok(path) } = found else {
        panic!("{found:?}");
    };
    trust_shared::evidence::verify(&std::fs::read(path).unwrap()).unwrap();
}

/// Without its beginning a device does not start again from nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_that_has_lost_its_start_does_not_run() {
    let lab = Lab::checkpointed(1, &[1]);
    let (one, _two) = pair(&lab).await;
    lab.checkpoint(1, &one, &[1]).await;
    lab.admit(&one, 3).await;
    lab.begin(3, Some(1)).await.unwrap();
    let three = running(&lab, 3).await;
    done(three.call(create(&three, "d", "d"), soon()).await);
    three.close(soon()).await.unwrap();
    let home = lab.home(3);
    let path = home.directory().join("start");
    let open = || {
        let parts = Parts::of(&home, &Options::default()).unwrap();
        parts.open(&home, soon()).map(drop)
    };
    let whole = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(open(), Err(ClientError::Disk(_))));
    std::fs::write(&path, &whole[1..]).unwrap();
    assert!(matches!(open(), Err(ClientError::Home(_))));
    std::fs::write(&path, &whole).unwrap();
    open().unwrap();
    // The floor of a device that has begun with the first leaf, with a start beside it.
    one.close(soon()).await.unwrap();
    let first = lab.home(1);
    std::fs::write(first.directory().join("start"), &whole).unwrap();
    let parts = Parts::of(&first, &Options::default()).unwrap();
    assert!(parts.open(&first, soon()).is_err());
}

/// `bulla ls` in another window while `bulla share join` still fetches the checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_that_waited_for_the_start_of_a_home_begins_with_it() {
    let lab = Lab::checkpointed(2, &[1, 2]);
    let (one, _two) = pair(&lab).await;
    let size = lab.checkpoint(1, &one, &[1, 2]).await.log.size;
    lab.admit(&one, 3).await;
    lab.begin(3, None).await.unwrap();
    let home = lab.home(3);
    let (memory, start) = (home.memory(0), home.memory(0).join("start"));
    let bytes = std::fs::read(&start).unwrap();
    std::fs::remove_file(&start).unwrap();
    let beginning = Closed::open(&memory, soon()).unwrap();
    let opening = std::thread::spawn({
        let home = home.clone();
        move || {
            let parts = Parts::of(&home, &Options::default()).unwrap();
            let opened = parts.open(&home, soon());
            opened.map(|core| core.engine().ledger().size())
        }
    });
    // It waits for the files.
    std::thread::sleep(Duration::from_millis(500));
    std::fs::write(&start, bytes).unwrap();
    drop(beginning);
    match opening.join().unwrap() {
        Err(ClientError::GoneOver) => {}
        opened => assert_eq!(opened.unwrap(), size),
    }
    let three = running(&lab, 3).await;
    assert_eq!(read(&three, "c").await, "c");
}
