//! Guests over a real socket: of an engine of this process, and of a process that a test plays.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sim::time::eventually;
use store::BlockSink;
use tokio::net::{UnixListener, UnixStream};
use trust::frame::Packer;
use trust::handle::Kind;
use trust::{Handle, Record};

use super::host::{Hosting, host, parts};
use super::seat::{Seat, keep};
use super::socket::{Owner, bind, greet, read_frame, write_frame};
use super::{guest, seat, socket};
use crate::client::local::{
    Asked, HELLO_BYTES, Hello, MAX_ASKED_BYTES, MAX_UNDER_WAY, Query, Response, Told,
};
use crate::client::tests::{Lab, create, done, look, place, read, soon};
use crate::client::{Client, ClientError, Compared, Connection, Options, Phase, View};
use crate::files::{Answer, Call, Feed, Stamped};
use crate::home::Home;

/// Lets others use the engine of this client.
fn open(home: &Home, client: &Client) {
    let directory = home.directory().to_owned();
    host(directory, Arc::downgrade(&client.0), &client.0.hosting).unwrap();
}

/// Fails instead of waiting for ever.
async fn within<T>(waits: impl Future<Output = T>) -> T {
    let late = tokio::time::timeout(Duration::from_secs(60), waits).await;
    late.expect("it comes within a minute")
}

/// A guest of the process that listens at this home.
async fn guest_at(home: &Home) -> Client {
    let joined = match guest::join(home.directory()).await {
        Ok(joined) => joined,
        Err(_) => panic!("nobody listens"),
    };
    let options = Options::default();
    let policies = home.policies().unwrap();
    let (client, plug) = Client::new(
        policies,
        ("lab", None),
        &options,
        joined.view.clone(),
        Default::default(),
    );
    let (engine, hosting) = (Arc::downgrade(&client.0), Arc::clone(&client.0.hosting));
    let seat = Seat::Guest(Box::new(joined));
    tokio::spawn(keep(seat, plug, home.clone(), options, engine, hosting));
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_calls_looks_compares_and_moves_blocks() {
    let lab = Lab::new();
    let (home, own) = (lab.home(1), lab.client(1));
    open(&home, &own);
    let guest = guest_at(&home).await;
    guest.running(soon()).await.unwrap();
    assert_eq!(guest.view().process, Some(std::process::id()));
    done(guest.call(create(&guest, "plan", "nine"), soon()).await);
    assert_eq!(read(&own, "plan").await, "nine");
    assert_eq!(read(&guest, "plan").await, "nine");
    let both = [&own, &guest];
    let mut members = Vec::new();
    for client in both {
        let Answer::Members(roll) = done(client.call(Call::Members, soon()).await) else {
            panic!("not the members");
        };
        members.push(format!(
            "{:?}",
            roll.members.devices(roll.at).collect::<Vec<_>>()
        ));
    }
    assert_eq!(members[0], members[1]);
    let page = || Call::History {
        before: None,
        most: 64,
    };
    let (mine, its) = (
        own.look(page(), soon()).await,
        guest.look(page(), soon()).await,
    );
    assert_eq!(done(mine), done(its));
    let status = guest.status(soon()).await.unwrap();
    assert_eq!(status.devices, own.status(soon()).await.unwrap().devices);
    let note = status.note.unwrap();
    let compared = guest.compare(note, soon()).await.unwrap();
    assert!(matches!(compared, Compared::Same { .. }), "{compared:?}");
    let content = vec![7; 300_000];
    let handle = guest.hasher().name(Kind::Data, &content);
    let frame = Packer::new().pack(Kind::Data, &content).unwrap();
    let absent = guest
        .sink(Duration::from_secs(30))
        .touch(&[handle])
        .await
        .unwrap();
    assert_eq!(absent, [handle]);
    guest
        .sink(Duration::from_secs(30))
        .put(&[Record { handle, frame }])
        .await
        .unwrap();
    assert!(
        own.sink(Duration::from_secs(30))
            .touch(&[handle])
            .await
            .unwrap()
            .is_empty()
    );
    let missing = Call::Unlink {
        place: place(&guest, "nothing"),
    };
    let refused = done(guest.call(missing, soon()).await);
    assert!(matches!(refused, Answer::Refused(_)), "{refused:?}");
    guest.close(soon()).await.unwrap();
    assert_eq!(read(&own, "plan").await, "nine");
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_that_goes_leaves_the_engine() {
    let lab = Lab::new();
    let (home, own) = (lab.home(1), lab.client(1));
    own.running(soon()).await.unwrap();
    open(&home, &own);
    let free = own.0.places.available_permits();
    lab.door.close();
    let guest = guest_at(&home).await;
    let calls: Vec<_> = (0..10)
        .map(|number| {
            let (guest, name) = (guest.clone(), format!("file {number}"));
            tokio::spawn(async move { guest.call(create(&guest, &name, ""), soon()).await })
        })
        .collect();
    let waiting = || own.0.places.available_permits() == free - 10;
    eventually("the calls are in the engine", waiting).await;
    // One program waits no more; then the whole guest goes.
    calls[0].abort();
    eventually("one has left", || {
        own.0.places.available_permits() == free - 9
    })
    .await;
    guest.close(soon()).await.unwrap();
    eventually("all have left", || own.0.places.available_permits() == free).await;
    lab.serve();
    assert!(matches!(
        look(&own, "file 3").await,
        Answer::Refused(_) | Answer::Found(_)
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_ends_answers_changes_and_says_so() {
    let lab = Lab::new();
    let (home, own) = (lab.home(1), lab.client(1));
    own.running(soon()).await.unwrap();
    open(&home, &own);
    lab.door.close();
    let guest = guest_at(&home).await;
    let free = own.0.places.available_permits();
    let call = create(&guest, "plan", "nine");
    let writing = tokio::spawn({
        let guest = guest.clone();
        async move { guest.call(call, soon()).await }
    });
    eventually("the call is in the engine", || {
        own.0.places.available_permits() == free - 1
    })
    .await;
    let closing = tokio::spawn(own.close(soon()));
    let left = || !home.directory().join("socket").exists();
    eventually("nobody else can connect", left).await;
    assert!(!closing.is_finished());
    lab.serve();
    assert!(matches!(done(writing.await.unwrap()), Answer::Done(_)));
    closing.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_ends_while_a_guest_waits_for_changes() {
    let lab = Lab::new();
    let (home, own) = (lab.home(1), lab.client(1));
    own.running(soon()).await.unwrap();
    open(&home, &own);
    let guest = guest_at(&home).await;
    let hold = Duration::from_secs(3600);
    let first = guest.changes(None, hold, soon()).await.unwrap().unwrap();
    let Feed::LookAgain { now: since } = first else {
        panic!("{first:?}");
    };
    let free = own.0.places.available_permits();
    let waiting = tokio::spawn({
        let guest = guest.clone();
        async move { guest.changes(Some(since), hold, soon()).await }
    });
    let in_engine = || own.0.places.available_permits() == free - 1;
    eventually("the question is in the engine", in_engine).await;
    // The question does not hold the engine up, which ends while nothing has changed. It goes to the next engine, as
    // every question does.
    own.close(soon()).await.unwrap();
    assert!(!waiting.is_finished());
    waiting.abort();
}

/// Another process may have the lock, and the socket, as soon as this one has left.
#[tokio::test]
async fn who_has_left_does_not_remove_the_socket_of_the_next_process() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path();
    let [early, late] = [(); 2].map(|()| Arc::new(Hosting::default()));
    host(home.to_owned(), Weak::new(), &late).unwrap();
    late.leave(Instant::now()).await;
    assert!(!home.join("socket").exists());
    // This one leaves while it takes the engine.
    early.leave(Instant::now()).await;
    host(home.to_owned(), Weak::new(), &early).unwrap();
    let (_listener, _) = bind(home).unwrap();
    // Time for the tasks of the process that has left.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(socket::connect(home).await.is_ok());
    for hosting in [early, late] {
        hosting.leave(Instant::now()).await;
    }
    assert!(socket::connect(home).await.is_ok());
}

/// A process at the socket of a home, which a test plays.
struct Played(UnixListener);

impl Played {
    fn at(home: &Home) -> Played {
        Played(bind(home.directory()).unwrap().0)
    }

    async fn accept(&self) -> UnixStream {
        let (mut stream, _) = within(self.0.accept()).await.unwrap();
        greet(&mut stream).await.unwrap();
        tell(
            &mut stream,
            &Told::View(View {
                connection: Connection::Online,
                phase: Phase::Running,
                size: 7,
                process: None,
            }),
        )
        .await;
        stream
    }
}

async fn tell(stream: &mut UnixStream, told: &Told) {
    write_frame(stream, &told.encode()).await.unwrap();
}

async fn asked(stream: &mut UnixStream) -> (u64, Asked) {
    let frame = within(read_frame(stream, MAX_ASKED_BYTES)).await;
    let frame = frame.unwrap().unwrap();
    Asked::decode(&frame).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn change_that_was_taken_is_not_sent_again_and_a_read_is() {
    let lab = Lab::new();
    // The lock is another process's.
    let (home, _own) = (lab.home(1), lab.client(1));
    let played = Played::at(&home);
    let (guest, mut stream) = tokio::join!(guest_at(&home), played.accept());
    let change = {
        let (guest, call) = (guest.clone(), create(&guest, "plan", "nine"));
        tokio::spawn(async move { guest.call(call, soon()).await })
    };
    assert!(matches!(
        asked(&mut stream).await,
        (
            _,
            Asked::Call(Stamped {
                call: Call::Create { .. },
                ..
            })
        )
    ));
    let reading = {
        let guest = guest.clone();
        tokio::spawn(async move { guest.call(Call::Members, soon()).await })
    };
    assert!(matches!(
        asked(&mut stream).await,
        (
            _,
            Asked::Call(Stamped {
                call: Call::Members,
                ..
            })
        )
    ));
    drop(stream);
    let told = change.await.unwrap();
    assert!(matches!(told, Err(ClientError::Interrupted)), "{told:?}");
    let mut stream = played.accept().await;
    let (
        id,
        Asked::Call(Stamped {
            call: Call::Members,
            ..
        }),
    ) = asked(&mut stream).await
    else {
        panic!("not the read");
    };
    let why = Box::new(Err(ClientError::Busy));
    tell(&mut stream, &Told::Response(id, Response::Answer(why))).await;
    assert!(matches!(reading.await.unwrap(), Err(ClientError::Busy)));
}

#[tokio::test(flavor = "multi_thread")]
async fn change_that_was_not_taken_is_sent_to_the_next_engine() {
    let lab = Lab::new();
    let (home, _own) = (lab.home(1), lab.client(1));
    let played = Played::at(&home);
    let (guest, mut stream) = tokio::join!(guest_at(&home), played.accept());
    let calls: Vec<_> = ["one", "two"]
        .into_iter()
        .map(|name| {
            let (guest, call) = (guest.clone(), create(&guest, name, ""));
            tokio::spawn(async move { guest.call(call, soon()).await })
        })
        .collect();
    let (first, Asked::Call(_)) = asked(&mut stream).await else {
        panic!("not a call");
    };
    asked(&mut stream).await;
    // The engine has taken one of the two.
    tell(&mut stream, &Told::Leaving(1)).await;
    let settled = Box::new(Ok(crate::client::Answered {
        answer: Answer::Settled,
        at: 8,
        marked: Default::default(),
    }));
    tell(
        &mut stream,
        &Told::Response(first, Response::Answer(settled)),
    )
    .await;
    drop(stream);
    let mut stream = played.accept().await;
    let (
        second,
        Asked::Call(Stamped {
            call: Call::Create { .. },
            ..
        }),
    ) = asked(&mut stream).await
    else {
        panic!("not the other call");
    };
    assert_ne!(first, second);
    let why = Box::new(Err(ClientError::Busy));
    tell(&mut stream, &Told::Response(second, Response::Answer(why))).await;
    let mut told = Vec::new();
    for call in calls {
        told.push(call.await.unwrap().map(|answered| answered.answer).ok());
    }
    told.sort_by_key(Option::is_some);
    assert_eq!(told, [None, Some(Answer::Settled)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn query_is_asked_again_of_the_next_engine() {
    let lab = Lab::new();
    let (home, _own) = (lab.home(1), lab.client(1));
    let played = Played::at(&home);
    let (guest, mut stream) = tokio::join!(guest_at(&home), played.accept());
    let changed = {
        let guest = guest.clone();
        tokio::spawn(async move { guest.beacons_changed(soon()).await })
    };
    assert!(matches!(
        asked(&mut stream).await,
        (_, Asked::Query(Query::Beacons))
    ));
    drop(stream);
    let mut stream = played.accept().await;
    let (id, Asked::Query(Query::Beacons)) = asked(&mut stream).await else {
        panic!("not the query");
    };
    let done = Response::Done(Ok(Vec::new()));
    tell(&mut stream, &Told::Response(id, done)).await;
    changed.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn program_with_too_much_under_way_is_cut_off_alone() {
    let lab = Lab::new();
    let (home, own) = (lab.home(1), lab.client(1));
    own.running(soon()).await.unwrap();
    open(&home, &own);
    lab.door.close();
    let mut stream = super::socket::connect(home.directory()).await.unwrap();
    greet(&mut stream).await.unwrap();
    for id in 0..=MAX_UNDER_WAY as u64 {
        let call = Asked::Call(Call::Members.into());
        if write_frame(&mut stream, &call.encode(id)).await.is_err() {
            break;
        }
    }
    // The view comes, and then the end.
    within(async { while let Ok(Some(_)) = read_frame(&mut stream, 1 << 20).await {} }).await;
    let free = Options::default().calls;
    eventually("its calls are gone", || {
        own.0.places.available_permits() == free
    })
    .await;
    lab.serve();
    done(own.call(create(&own, "plan", ""), soon()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_beyond_the_bound_are_sent_away_and_silent_ones_too() {
    let lab = Lab::new();
    let (home, own) = (lab.home(1), lab.client(1));
    own.running(soon()).await.unwrap();
    open(&home, &own);
    // These say nothing. Each is told the hello, and those beyond the bound not even that.
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(super::socket::connect(home.directory()).await.unwrap());
    }
    let (mut greeted, mut sent_away) = (0, 0);
    for mut stream in silent {
        use tokio::io::AsyncReadExt;
        let mut told = Vec::new();
        // Ends when the host has waited long enough for this program's hello.
        let _ = stream.read_to_end(&mut told).await;
        match told.len() {
            0 => sent_away += 1,
            _ => greeted += 1,
        }
    }
    assert_eq!((greeted, sent_away), (32, 8));
    let guest = guest_at(&home).await;
    done(guest.call(create(&guest, "plan", "nine"), soon()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_protocol_is_named_and_the_first_bytes_are_checked() {
    let lab = Lab::new();
    let home = lab.home(1);
    let played = Played::at(&home);
    let other = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = played.0.accept().await.unwrap();
        let hello = Hello {
            protocol: 9,
            build: "9.0".to_owned(),
        };
        stream.write_all(&hello.encode()).await.unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES]).await.unwrap();
    });
    let taken = seat::take(&home, &Options::default(), &Default::default(), soon()).await;
    let Err(ClientError::OtherBuild { build, process }) = taken else {
        panic!("another protocol is accepted");
    };
    assert_eq!((build.as_str(), process), ("9.0", std::process::id()));
    other.await.unwrap();
    let mut bytes = Hello::own().encode();
    assert_eq!(Hello::decode(&bytes), Ok(Hello::own()));
    bytes[3] ^= 1;
    assert!(Hello::decode(&bytes).is_err());
}

#[test]
fn only_the_owner_of_a_home_and_the_administrator_may_connect() {
    let owner = Owner::of(1000);
    assert!(owner.admits(1000) && owner.admits(0));
    assert!(!owner.admits(1001) && !owner.admits(65534));
}

#[test]
fn records_go_in_parts_that_lose_none() {
    let record = |bytes: usize| Record {
        handle: Handle::from_bytes([1; 32]),
        frame: Packer::new()
            .pack(Kind::Data, &sim::random::noise(1, bytes))
            .unwrap(),
    };
    let records: Vec<Record> = [10, 500, 2000, 10, 10, 900].map(record).into();
    let split = parts(&records, 1000);
    assert_eq!(split.concat(), records);
    let long = |part: &&[Record]| part.iter().map(Record::len).sum::<usize>() > 1000;
    assert!(
        split
            .iter()
            .filter(|part| long(part))
            .all(|part| part.len() == 1)
    );
    assert!(parts(&[], 1000).is_empty());
}
