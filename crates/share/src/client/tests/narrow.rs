//! Devices that have no room on their shelf, while an older question waits for the server.

use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use super::*;
use crate::client::Folding;
use crate::client::connection::{Deliveries, Dial, Line};
use crate::client::core::{Core, Input, MOST_LEAVES, Out};
use crate::files::ShelfBytes;

const FILES: u32 = 4;

/// No room for what is fetched: only what a question needs stays, while it is its turn.
fn narrow() -> Options {
    Options {
        shelf: ShelfBytes::each(1),
        ..Options::default()
    }
}

async fn make_all(client: &Client, names: impl Iterator<Item = String>, content: &str) {
    let calls = names.map(|name| client.call(create(client, &name, content), soon()));
    for made in join_all(calls).await {
        let made = done(made);
        assert!(matches!(made, Answer::Done(_)), "{made:?}");
    }
}

/// The first device has written files in entries with bodies so long that the second one is not sent them. The second
/// one has written the others, and has their bodies.
async fn second_writer(lab: &Lab, wire: &Arc<hosted::Wire>) -> Client {
    let one = lab.client(1);
    one.running(soon()).await.unwrap();
    let names = (0..20).map(|number| format!("theirs{number}"));
    make_all(&one, names, &"text".repeat(50)).await;
    lab.admit(&one, 2).await;
    one.close(soon()).await.unwrap();
    let two = lab.client_with(2, wire, &narrow());
    two.running(soon()).await.unwrap();
    let names = (0..FILES).map(|number| format!("own{number}"));
    make_all(&two, names, "own").await;
    two
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn question_that_waits_for_the_server_holds_up_no_question_that_the_floor_answers() {
    let (lab, wire) = (Lab::new(), Arc::default());
    let two = second_writer(&lab, &wire).await;
    wire.no_bodies.store(true, Ordering::SeqCst);
    // Which of them are in one entry, and so in a long one, is a matter of time.
    let names: Vec<String> = (0..20).map(|number| format!("theirs{number}")).collect();
    let theirs = join_all(names.iter().map(|name| read(&two, name)));
    let own = async {
        let asked = || wire.kept_waiting.load(Ordering::SeqCst);
        eventually("a body is asked for", asked).await;
        for number in 0..FILES {
            assert_eq!(read(&two, &format!("own{number}")).await, "own");
        }
        wire.no_bodies.store(false, Ordering::SeqCst);
    };
    let (theirs, ()) = tokio::join!(theirs, own);
    assert_eq!(theirs, vec!["text".repeat(50); 20]);
}

/// A device without a driver: what its engine asks for is sent, and nothing is fetched.
struct Bare {
    core: Core,
    line: Arc<dyn Line>,
    deliveries: Box<dyn Deliveries>,
    answered: Vec<u64>,
    /// The last answer.
    answer: Option<Answer>,
    /// The engine wants to go on.
    again: bool,
}

impl Bare {
    async fn of(lab: &Lab, machine: u8) -> Bare {
        Bare::with(lab, machine, &narrow()).await
    }

    async fn with(lab: &Lab, machine: u8, options: &Options) -> Bare {
        let home = lab.home(machine);
        let parts = Parts::of(&home, options).unwrap();
        let dial = Hosted {
            door: Arc::clone(&lab.door),
            device: DeviceKey::from(&key(machine).public()),
            wire: Arc::default(),
        };
        let (line, deliveries) = dial.dial().await.unwrap();
        let mut bare = Bare {
            core: parts.open(&home, soon()).unwrap(),
            line,
            deliveries,
            answered: Vec::new(),
            answer: None,
            again: false,
        };
        bare.step(Input::Connected);
        bare
    }

    fn step(&mut self, input: Input) {
        for out in self.core.step(input) {
            match out {
                Out::Send(request) => self.line.send(request).unwrap(),
                Out::Answer { ticket, answer, .. } => {
                    self.answered.push(ticket);
                    self.answer = Some(answer);
                }
                Out::Again => self.again = true,
                _ => {}
            }
        }
    }

    /// What the engine wants to go on with waits, while the server sends something or a timer rings.
    async fn run_until(&mut self, what: &str, done: impl Fn(&Bare) -> bool) {
        let late = Instant::now() + Duration::from_secs(10);
        while !done(self) {
            assert!(Instant::now() < late, "not {what}");
            let pause = Duration::from_millis(10);
            let event = match tokio::time::timeout(pause, self.deliveries.next()).await {
                Ok(reply) => Input::Deliver(reply.unwrap()),
                Err(_) if std::mem::take(&mut self.again) => Input::Supplied,
                Err(_) => Input::Ring,
            };
            self.step(event);
        }
    }
}

#[tokio::test]
async fn long_search_of_the_floor_takes_several_steps() {
    let lab = Lab::new();
    let two = second_writer(&lab, &Arc::default()).await;
    let call = |name| Call::Lookup {
        place: place(&two, name),
        follow: true,
    };
    let (theirs, own) = (call("theirs19"), call("own0"));
    two.close(soon()).await.unwrap();
    let calls = [(1, theirs.clone()), (2, own.clone())];
    let (issued, looked) = (
        Input::Issue(calls.map(|(ticket, call)| (ticket, call.into())).into()),
        Input::Look(3, theirs),
    );
    for (first, second, ticket) in [(issued, None, 2), (looked, Some(Input::Look(4, own)), 4)] {
        let mut bare = Bare::of(&lab, 2).await;
        bare.run_until("running", |bare| bare.core.engine().is_running())
            .await;
        bare.step(first);
        second.into_iter().for_each(|second| bare.step(second));
        bare.run_until("interrupted", |bare| bare.again).await;
        assert_eq!(bare.answered, []);
        bare.run_until("answered", |bare| !bare.answered.is_empty())
            .await;
        assert_eq!(bare.answered, [ticket]);
    }
}

/// There is no room for the bodies of all entries of a page.
#[tokio::test]
async fn page_of_the_log_ends_where_there_is_no_more_room() {
    let lab = Lab::new();
    let one = lab.client(1);
    one.running(soon()).await.unwrap();
    done(one.call(create(&one, "shared", "0"), soon()).await);
    for number in 1..30 {
        super::tidy::write(&one, "shared", &number.to_string()).await;
    }
    one.close(soon()).await.unwrap();
    let mut bare = Bare::of(&lab, 1).await;
    bare.run_until("running", |bare| bare.core.engine().is_running())
        .await;
    let mut next = Some(u64::MAX);
    let mut positions = Vec::new();
    for ticket in 0.. {
        let Some(before) = next else { break };
        let (before, most) = (Some(before), 64);
        bare.step(Input::Look(ticket, Call::History { before, most }));
        bare.run_until("answered", |bare| !bare.answered.is_empty())
            .await;
        assert_eq!(std::mem::take(&mut bare.answered), [ticket]);
        let Some(Answer::History(page)) = bare.answer.take() else {
            panic!("no page");
        };
        next = page.next;
        positions.extend(page.entries.iter().map(|logged| logged.at));
    }
    assert!(positions.is_sorted_by(|newer, older| newer > older));
    assert_eq!(positions.len(), 30);
}

/// An older question, which waits for the server, has what room there is.
#[tokio::test]
async fn page_of_the_log_takes_several_steps() {
    let lab = Lab::new();
    let two = second_writer(&lab, &Arc::default()).await;
    let theirs = Call::Lookup {
        place: place(&two, "theirs19"),
        follow: true,
    };
    two.close(soon()).await.unwrap();
    let mut bare = Bare::of(&lab, 2).await;
    bare.run_until("running", |bare| bare.core.engine().is_running())
        .await;
    bare.step(Input::Look(1, theirs));
    let (before, most) = (None, 1);
    bare.step(Input::Look(2, Call::History { before, most }));
    bare.run_until("interrupted", |bare| bare.again).await;
    assert_eq!(bare.answered, []);
    bare.run_until("answered", |bare| !bare.answered.is_empty())
        .await;
    assert_eq!(bare.answered, [2]);
}

/// An older question, which waits for the server, has what room there is. The floor has the bodies of changes that are not
/// folded, and they must be judged before anything is forgotten.
#[tokio::test]
async fn forgetting_takes_several_steps() {
    let lab = Lab::new();
    let one = lab.client_with(1, &Arc::default(), &super::tidy::never());
    one.running(soon()).await.unwrap();
    let names = (0..40).map(|number| format!("shared{number}"));
    make_all(&one, names, "0").await;
    // Each in an entry of its own, and none of them in the fold.
    for number in 0..12 {
        let mut call = create(&one, &format!("own{number}"), "0");
        if let Call::Create { owner, .. } = &mut call {
            *owner = Some(Principal::from_bytes([7; 32]));
        }
        done(one.call(call, soon()).await);
    }
    // A fold counts only as far as its entry attests the log: what is durable on this device.
    let late = soon();
    loop {
        let status = one.status(late).await.unwrap();
        if status.kept == status.log.size {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let fold = Call::Fold(one.root().principal);
    assert_eq!(done(one.call(fold, soon()).await), Answer::Settled);
    let folded = Call::Lookup {
        place: place(&one, "shared0"),
        follow: true,
    };
    one.close(soon()).await.unwrap();
    // It forgets 24 ops or more, and has less than 24 changes to fold.
    let folding = Folding {
        changes: 24,
        pause: Duration::ZERO,
    };
    let options = Options {
        folding,
        ..narrow()
    };
    let mut bare = Bare::with(&lab, 1, &options).await;
    bare.step(Input::Look(1, folded));
    let ops = |bare: &Bare| bare.core.engine().ledger().volume().ops_since_forgetting();
    bare.run_until("interrupted", |bare| bare.again).await;
    assert!(bare.core.engine().is_running() && ops(&bare) > 48);
    bare.run_until("forgotten", |bare| ops(bare) == 0).await;
    // The fold's blocks do not come.
    assert_eq!(bare.answered, []);
}

/// The log has one entry, and after it more questions than a page looks at.
#[tokio::test]
async fn page_of_the_log_looks_at_so_many_leaves_and_no_more() {
    let lab = Lab::new();
    let one = lab.client(1);
    one.running(soon()).await.unwrap();
    done(one.call(create(&one, "plan", "0"), soon()).await);
    one.close(soon()).await.unwrap();
    let mut bare = Bare::of(&lab, 1).await;
    bare.run_until("running", |bare| bare.core.engine().is_running())
        .await;
    let before = bare.core.engine().ledger().size();
    let mut ticket = 0;
    while bare.core.engine().ledger().size() <= before + MOST_LEAVES {
        ticket += 1;
        bare.step(Input::Issue(vec![(ticket, Call::Members.into())]));
        bare.run_until("answered", |bare| bare.answered == [ticket])
            .await;
        bare.answered.clear();
    }
    let size = bare.core.engine().ledger().size();
    let mut page = |before, ticket| {
        bare.step(Input::Look(ticket, Call::History { before, most: 1 }));
        assert_eq!(std::mem::take(&mut bare.answered), [ticket]);
        let Some(Answer::History(page)) = bare.answer.take() else {
            panic!("no page");
        };
        page
    };
    let newest = page(None, 1);
    assert_eq!(
        (newest.entries.len(), newest.next),
        (0, Some(size - MOST_LEAVES))
    );
    let oldest = page(newest.next, 2);
    assert_eq!(oldest.entries.len(), 1);
}
