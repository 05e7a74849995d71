//! Devices fold unasked, forget what is folded, and read the same as before.

use trust_shared::decision::{Label, Role};

use super::*;
use crate::client::Folding;
use crate::outbox::Unstored;

fn eager() -> Options {
    Options {
        folding: Folding {
            changes: 16,
            pause: Duration::ZERO,
        },
        ..Options::default()
    }
}

/// Of a device that does not fold unasked.
pub(super) fn never() -> Options {
    Options {
        folding: Folding {
            changes: 1 << 40,
            pause: Duration::ZERO,
        },
        ..Options::default()
    }
}

/// Waits until a device keeps few outlines.
pub(super) async fn forgets(client: &Client, most: u64) {
    let late = Instant::now() + Duration::from_secs(20);
    loop {
        let status = client.status(soon()).await.unwrap();
        if status.outlines <= most {
            return;
        }
        assert!(Instant::now() < late, "{} outlines", status.outlines);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(super) async fn write(client: &Client, path: &str, content: &str) {
    let call = Call::SetContent {
        file: crate::files::FileRef::Place(place(client, path)),
        content: inode(content).content,
        mtime: Time::default(),
        expect: None,
    };
    let answer = done(client.call(call, soon()).await);
    assert!(matches!(answer, Answer::Done(_)), "{path}: {answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_that_folds_and_forgets_reads_what_was_written() {
    let lab = Lab::new();
    let wire = Arc::default();
    let client = lab.client_with(1, &wire, &eager());
    client.running(soon()).await.unwrap();
    for number in 0..60 {
        let name = format!("f{}", number % 20);
        match number {
            0..20 => drop(done(
                client.call(create(&client, &name, "new"), soon()).await,
            )),
            _ => write(&client, &name, &format!("version {number}")).await,
        }
    }
    // 20 names and 60 inodes, with a fold for each 16 to 32 changes.
    forgets(&client, 60).await;
    for number in 0..20 {
        let name = format!("f{number}");
        let newest = format!("version {}", number + 40);
        assert_eq!(read(&client, &name).await, newest);
        write(&client, &name, "last").await;
    }
    client.close(soon()).await.unwrap();

    // After a restart too it reads forgotten entries' files from the fold.
    let client = lab.client_with(1, &wire, &eager());
    lab.admit(&client, 2).await;
    let other = lab.client(2);
    other.running(soon()).await.unwrap();
    for number in 0..20 {
        let name = format!("f{number}");
        assert_eq!(read(&client, &name).await, "last");
        assert_eq!(read(&other, &name).await, "last");
    }
    forgets(&client, 60).await;
    assert!(other.status(soon()).await.unwrap().outlines > 80);
}

/// A server without room refuses what a fold stores. Programs write on, and the device folds when there is room again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fold_that_the_server_has_no_room_for_holds_no_program_up() {
    let lab = Lab::new();
    let wire: Arc<hosted::Wire> = Arc::default();
    *wire.refuses.lock().unwrap() = Some(Unstored::Full);
    let client = lab.client_with(1, &wire, &eager());
    client.running(soon()).await.unwrap();
    for number in 0..60 {
        let call = create(&client, &number.to_string(), "x");
        let answer = done(client.call(call, soon()).await);
        assert!(matches!(answer, Answer::Done(_)), "{number}: {answer:?}");
    }
    // A fold that a program asks for is told of.
    let fold = Call::Fold(client.root().principal);
    match client.call(fold.clone(), soon()).await {
        Err(ClientError::Unstored { is_full: true, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(read(&client, "59").await, "x");
    *wire.refuses.lock().unwrap() = None;
    assert_eq!(done(client.call(fold, soon()).await), Answer::Settled);
}

/// Makes the device of a machine that of a user of its own, who may write.
async fn admit_stranger(admin: &Client, machine: u8, user: Principal) {
    let decisions = [
        Decision::AddUser {
            user,
            label: Label::new("stranger").unwrap(),
        },
        Decision::Grant {
            group: admin.root().principal,
            user,
            role: Role::Writer,
        },
        Decision::AdmitDevice {
            device: trust_shared::principal::Device(machine.into()),
            key: key(machine).public(),
            user,
        },
    ];
    for decision in decisions {
        let answer = done(admin.call(Call::Decide(decision), soon()).await);
        assert_eq!(answer, Answer::Settled);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_who_never_folds_holds_up_nobodys_forgetting() {
    let lab = Lab::new();
    let (wire, other_wire) = (Arc::default(), Arc::default());
    let one = lab.client_with(1, &wire, &eager());
    one.running(soon()).await.unwrap();
    let user = Principal::from_bytes([8; 32]);
    admit_stranger(&one, 2, user).await;
    let two = lab.client_with(2, &other_wire, &never());
    two.running(soon()).await.unwrap();
    done(one.call(create(&one, "shared", "0"), soon()).await);
    for name in ["x", "y", "z"] {
        let mut call = create(&two, name, "0");
        if let Call::Create { owner, .. } = &mut call {
            *owner = Some(user);
        }
        done(two.call(call, soon()).await);
    }
    for number in 1..60 {
        let content = number.to_string();
        let own = ["x", "y", "z"][number % 3];
        tokio::join!(write(&one, "shared", &content), write(&two, own, &content));
    }
    // Only the second device may fold its files. The first one folds after each 16 to 32 changes of its own, and between
    // these the log has as many changes of the other device. A device that forgets nothing keeps all of some 130.
    forgets(&one, 100).await;
    assert_eq!(read(&one, "shared").await, "59");
    for (name, last) in [("x", "57"), ("y", "58"), ("z", "59")] {
        assert_eq!(read(&two, name).await, last);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fold_that_is_attested_late_is_forgotten_up_to() {
    let lab = Lab::new();
    let (wire, other_wire) = (Arc::default(), Arc::default());
    let one = lab.client_with(1, &wire, &never());
    one.running(soon()).await.unwrap();
    lab.admit(&one, 2).await;
    done(one.call(create(&one, "shared", "0"), soon()).await);
    for number in 1..60 {
        write(&one, "shared", &number.to_string()).await;
    }
    one.close(soon()).await.unwrap();
    let silent = Options {
        attest_after: Duration::from_secs(3600),
        ..never()
    };
    let two = lab.client_with(2, &other_wire, &silent);
    two.running(soon()).await.unwrap();
    done(two.call(create(&two, "x", "0"), soon()).await);
    // It is gone before it has attested its entry.
    two.close(soon()).await.unwrap();
    let size = lab.door.size();
    let one = lab.client_with(1, &wire, &eager());
    // Its Resume, and its fold.
    eventually("one folds", || lab.door.size() > size + 1).await;
    // It cannot forget yet.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(one.status(soon()).await.unwrap().outlines > 60);
    let two = lab.client(2);
    two.running(soon()).await.unwrap();
    forgets(&one, 60).await;
    assert_eq!(read(&two, "shared").await, "59");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_devices_that_fold_at_once_do_no_harm() {
    let lab = Lab::new();
    let (wire, other_wire) = (Arc::default(), Arc::default());
    let one = lab.client_with(1, &wire, &eager());
    one.running(soon()).await.unwrap();
    lab.admit(&one, 2).await;
    let two = lab.client_with(2, &other_wire, &eager());
    two.running(soon()).await.unwrap();
    done(one.call(create(&one, "a", "0"), soon()).await);
    done(one.call(create(&one, "b", "0"), soon()).await);
    for number in 1..60 {
        let content = number.to_string();
        tokio::join!(write(&one, "a", &content), write(&two, "b", &content));
    }
    forgets(&one, 100).await;
    forgets(&two, 100).await;
    for client in [&one, &two] {
        assert_eq!(read(client, "a").await, "59");
        assert_eq!(read(client, "b").await, "59");
    }
}
