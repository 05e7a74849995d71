//! The feed of changes: questions that wait, silent devices, cursors that are of no use, and long logs.

use std::collections::HashSet;

use trust_shared::decision::{Label, Role};
use trust_shared::principal::{Device, FileId};

use super::tidy::never;
use super::*;
use crate::client::core::{MAX_BEHIND, MOST_LEAVES};
use crate::files::{After, Cursor, Feed, FileRef, MAX_TOUCHED, Thing, Touched};

const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

/// Asks without waiting.
pub(super) async fn ask(client: &Client, since: Option<Cursor>, hold: Duration) -> Feed {
    let hold_ms = u32::try_from(hold.as_millis()).unwrap_or(u32::MAX);
    let call = Call::Feed {
        since,
        wait: false,
        hold_ms,
    };
    match done(client.look(call, soon()).await) {
        Answer::Feed(feed) => feed,
        other => panic!("{other:?}"),
    }
}

/// Where a program begins.
pub(super) async fn now(client: &Client) -> Cursor {
    match ask(client, None, Duration::ZERO).await {
        Feed::LookAgain { now } => now,
        told => panic!("{told:?}"),
    }
}

pub(super) fn told(feed: Feed) -> (Vec<Touched>, Cursor, After) {
    match feed {
        Feed::Changes {
            changes,
            until,
            after,
        } => (changes, until, after),
        Feed::LookAgain { now } => panic!("look again at {now:?}"),
    }
}

fn name(client: &Client, name: &str) -> Thing {
    Thing::Name(client.root(), Name::new(name.as_bytes()).unwrap())
}

fn names(changes: &[Touched]) -> Vec<&Thing> {
    changes.iter().map(|touched| &touched.what).collect()
}

fn file(answer: Answer) -> FileId {
    match answer {
        Answer::Done(file) => file,
        other => panic!("{other:?}"),
    }
}

/// Two devices of one user.
async fn pair(lab: &Lab, second: &Options) -> (Client, Client) {
    let one = lab.client_with(1, &Arc::default(), &never());
    one.running(soon()).await.unwrap();
    lab.admit(&one, 2).await;
    let two = lab.client_with(2, &Arc::default(), second);
    two.running(soon()).await.unwrap();
    (one, two)
}

/// Of a device that says nothing unless it is asked.
fn silent() -> Options {
    Options {
        attest_after: Duration::from_secs(3600),
        ..never()
    }
}

async fn next(client: &Client, since: Cursor, hold: Duration) -> Feed {
    let changes = client.changes(Some(since), hold, soon()).await;
    changes.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn question_waits_until_this_device_or_another_one_changes_something() {
    let lab = Lab::new();
    let (one, two) = pair(&lab, &never()).await;
    let since = now(&one).await;
    let early = Instant::now() + Duration::from_millis(200);
    let nothing = one.changes(Some(since), FOR_EVER, early).await;
    assert!(
        matches!(nothing, Err(ClientError::Deadline { .. })),
        "{nothing:?}"
    );
    let own = async {
        let waits = next(&one, since, FOR_EVER);
        let writes = one.call(create(&one, "own", "x"), soon());
        let (feed, made) = tokio::join!(waits, writes);
        (told(feed), file(done(made)))
    };
    let ((changes, until, _), made) = own.await;
    // The time of the directory has changed, too.
    let (file_made, directory) = (Thing::File(made), Thing::File(one.root()));
    let all = [&file_made, &name(&one, "own"), &directory];
    assert!(names(&changes).iter().all(|thing| all.contains(thing)));
    assert_eq!(changes.len(), 3, "{changes:?}");
    assert!(since.size <= changes[0].at && changes[0].at < until.size);
    // The other device's entry may be used as soon as it attests it.
    let waits = next(&one, until, FOR_EVER);
    let writes = two.call(create(&two, "theirs", "x"), soon());
    let (feed, made) = tokio::join!(waits, writes);
    let (changes, until, _) = told(feed);
    let made = file(done(made));
    assert!(names(&changes).contains(&&Thing::File(made)));
    assert!(names(&changes).contains(&&name(&one, "theirs")));
    // Locks are shown to nobody.
    let lock = Call::Lock {
        file: FileRef::File(made),
        wait: false,
    };
    done(one.call(lock, soon()).await);
    let (changes, _, _) = told(ask(&one, Some(until), Duration::ZERO).await);
    assert_eq!(changes, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_a_silent_device_is_told_when_it_speaks() {
    let lab = Lab::new();
    let (one, two) = pair(&lab, &silent()).await;
    let since = now(&one).await;
    let made = file(done(two.call(create(&two, "quiet", "x"), soon()).await));
    let size = lab.door.size();
    eventually("the entry comes", || one.view().size >= size).await;
    let (changes, until, after) = told(ask(&one, Some(since), FOR_EVER).await);
    assert_eq!((changes, after), (Vec::new(), After::Held));
    // Its own changes that come later wait too: the order is that of the log.
    done(one.call(create(&one, "later", "x"), soon()).await);
    let (changes, _, after) = told(ask(&one, Some(until), FOR_EVER).await);
    assert_eq!((changes, after), (Vec::new(), After::Held));
    // A program that will not wait is told of it.
    let (changes, _, after) = told(ask(&one, Some(until), Duration::ZERO).await);
    // Two names, two files, and the directory.
    assert_eq!((changes.len(), after), (5, After::Nothing));
    let waits = next(&one, until, FOR_EVER);
    let speaks = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        // A read asks the device, and the device attests.
        assert_eq!(read(&one, "quiet").await, "x");
    };
    let (feed, ()) = tokio::join!(waits, speaks);
    let (changes, _, _) = told(feed);
    assert!(names(&changes).contains(&&Thing::File(made)), "{changes:?}");
    assert!(
        names(&changes).contains(&&name(&one, "later")),
        "{changes:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_device_holds_a_question_up_for_a_time_and_the_next_one_not_at_all() {
    let lab = Lab::new();
    let (one, two) = pair(&lab, &silent()).await;
    let since = now(&one).await;
    done(two.call(create(&two, "quiet", "x"), soon()).await);
    two.close(soon()).await.unwrap();
    let began = Instant::now();
    let (changes, until, _) = told(next(&one, since, Duration::from_millis(400)).await);
    assert!(began.elapsed() >= Duration::from_millis(350));
    assert!(
        names(&changes).contains(&&name(&one, "quiet")),
        "{changes:?}"
    );
    // It is silent still, and what others write is told.
    let waits = next(&one, until, FOR_EVER);
    let writes = one.call(create(&one, "later", "x"), soon());
    let (feed, _) = tokio::join!(waits, writes);
    assert!(names(&told(feed).0).contains(&&name(&one, "later")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acceptance_of_a_silent_device_is_the_end_of_the_wait() {
    let lab = Lab::new();
    let (one, two) = pair(&lab, &silent()).await;
    let since = now(&one).await;
    done(two.call(create(&two, "quiet", "x"), soon()).await);
    two.close(soon()).await.unwrap();
    let size = lab.door.size();
    eventually("the entry comes", || one.view().size >= size).await;
    let waits = next(&one, since, FOR_EVER);
    let accept = Call::Decide(Decision::Accept { device: Device(2) });
    let accepts = one.call(accept, soon());
    let (feed, accepted) = tokio::join!(waits, accepts);
    assert_eq!(done(accepted), Answer::Settled);
    assert!(names(&told(feed).0).contains(&&name(&one, "quiet")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_looks_again_when_its_cursor_is_of_no_use_or_its_roles_change() {
    let lab = Lab::new();
    let (one, two) = pair(&lab, &never()).await;
    let since = now(&one).await;
    let useless = [
        // Far beyond: the devices may attest meanwhile.
        Cursor {
            size: since.size + 1000,
            ..since
        },
        Cursor {
            epoch: since.epoch + 1,
            ..since
        },
    ];
    for cursor in useless {
        let feed = ask(&one, Some(cursor), Duration::ZERO).await;
        assert!(matches!(feed, Feed::LookAgain { .. }), "{feed:?}");
    }
    // A decision about somebody else is no reason.
    let (group, user) = (
        Principal::from_bytes([9; 32]),
        Principal::from_bytes([8; 32]),
    );
    let ada = Principal::from_bytes([7; 32]);
    let decisions = [
        Decision::AddGroup {
            group,
            label: Label::new("team").unwrap(),
        },
        Decision::AddUser {
            user,
            label: Label::new("bob").unwrap(),
        },
        Decision::Grant {
            group,
            user,
            role: Role::Writer,
        },
    ];
    for decision in decisions {
        done(one.call(Call::Decide(decision), soon()).await);
    }
    let (changes, until, _) = told(ask(&one, Some(since), Duration::ZERO).await);
    assert_eq!(changes, []);
    // One about this device's user is, for both of its devices.
    let grant = Decision::Grant {
        group,
        user: ada,
        role: Role::Reader,
    };
    let waits = next(&one, until, FOR_EVER);
    let decides = one.call(Call::Decide(grant), soon());
    let (feed, _) = tokio::join!(waits, decides);
    let Feed::LookAgain { now } = feed else {
        panic!("{feed:?}");
    };
    eventually("the other one has it", || two.view().size >= now.size).await;
    let feed = ask(&two, Some(until), Duration::ZERO).await;
    assert!(matches!(feed, Feed::LookAgain { .. }), "{feed:?}");
    // The group goes.
    let remove = Decision::RemovePrincipal { principal: group };
    done(one.call(Call::Decide(remove), soon()).await);
    let feed = ask(&one, Some(now), Duration::ZERO).await;
    assert!(matches!(feed, Feed::LookAgain { .. }), "{feed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fold_of_another_device_may_change_everything_that_it_folds_and_an_own_one_nothing() {
    let lab = Lab::new();
    let (one, two) = pair(&lab, &never()).await;
    done(one.call(create(&one, "a", "x"), soon()).await);
    let root = one.root().principal;
    for (folds, expected) in [(&one, Vec::new()), (&two, vec![Thing::Owned(root)])] {
        // It has attested what is folded.
        done(folds.call(create(folds, "b", "x"), soon()).await);
        assert!(matches!(look(&one, "a").await, Answer::Found(_)));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let since = now(&one).await;
        let folded = done(folds.call(Call::Fold(root), soon()).await);
        assert_eq!(folded, Answer::Settled);
        let size = lab.door.size();
        eventually("the fold comes", || one.view().size >= size).await;
        let (changes, _, _) = told(ask(&one, Some(since), Duration::ZERO).await);
        let things: Vec<Thing> = changes.into_iter().map(|it| it.what).collect();
        assert_eq!(things, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_has_so_many_changes_and_the_next_one_the_rest() {
    let lab = Lab::new();
    let one = lab.client_with(1, &Arc::default(), &never());
    one.running(soon()).await.unwrap();
    let since = now(&one).await;
    let many = MAX_TOUCHED / 2 + 100;
    let made = (0..many).map(|number| {
        let call = create(&one, &format!("f{number}"), "x");
        one.call(call, soon())
    });
    for made in futures_util::future::join_all(made).await {
        file(done(made));
    }
    let (first, until, after) = told(ask(&one, Some(since), Duration::ZERO).await);
    assert!(first.len() <= MAX_TOUCHED && first.len() > MAX_TOUCHED / 2);
    assert_eq!(after, After::More);
    let (second, _, after) = told(ask(&one, Some(until), Duration::ZERO).await);
    assert_eq!(after, After::Nothing);
    let all: HashSet<&Thing> = names(&first).into_iter().chain(names(&second)).collect();
    assert!((0..many).all(|number| all.contains(&name(&one, &format!("f{number}")))));
    // The directory is in both pages.
    assert_eq!(all.len(), 2 * many + 1);
    assert!(first.len() + second.len() <= 2 * many + 2);
    // A file that is written many times is named once, at its last change.
    let since = now(&one).await;
    for content in ["y", "z"] {
        super::tidy::write(&one, "f0", content).await;
    }
    let (changes, until, _) = told(ask(&one, Some(since), Duration::ZERO).await);
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(changes[0].at + 1, until.size);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_looks_at_so_many_leaves_and_a_long_log_is_looked_at_again() {
    let lab = Lab::new();
    let one = lab.client_with(1, &Arc::default(), &never());
    one.running(soon()).await.unwrap();
    let since = now(&one).await;
    let grown = async |leaves: u64| {
        // Each mark is a leaf.
        while one.view().size < since.size + leaves {
            let marks = (0..8).map(|_| one.call(Call::Members, soon()));
            futures_util::future::join_all(marks).await;
        }
    };
    grown(MOST_LEAVES + 10).await;
    let (changes, until, after) = told(ask(&one, Some(since), Duration::ZERO).await);
    assert_eq!((changes, after), (Vec::new(), After::More));
    assert_eq!(until.size, since.size + MOST_LEAVES);
    // A question that waits gives its program a newer cursor, although there is nothing to tell.
    let (changes, moved, _) = told(next(&one, since, FOR_EVER).await);
    assert_eq!((changes, moved), (Vec::new(), until));
    grown(MAX_BEHIND + 1).await;
    let feed = ask(&one, Some(since), Duration::ZERO).await;
    assert!(matches!(feed, Feed::LookAgain { .. }), "{feed:?}");
    told(ask(&one, Some(until), Duration::ZERO).await);
}
