//! Calls of programs on one and on several devices; lost connections, stops, kills.

use store::BlockSink;
use trust::Record;
use trust::frame::Packer;
use trust::handle::{Data, Handle};

use super::*;
use crate::client::{NewFile, Phase, Trouble};
use crate::files::{Attributes, FileRef, Refused};

/// A deadline that no test waits for.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn founder_writes_and_reads_and_finds_it_again_after_a_restart() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let made = client.call(create(&client, "letter", "dear all"), soon());
    assert!(matches!(done(made.await), Answer::Done(_)));
    assert_eq!(read(&client, "letter").await, "dear all");
    client.close(soon()).await.unwrap();

    let client = lab.client(1);
    assert_eq!(read(&client, "letter").await, "dear all");
    let again = client.call(create(&client, "letter", "x"), soon()).await;
    assert_eq!(done(again), Answer::Refused(Refused::Exists));
    let status = client.status(soon()).await.unwrap();
    assert!(matches!(status.phase, Phase::Running));
    assert_eq!(status.devices.len(), 1);
    assert!(status.log.size >= 5, "{:?}", status.log);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn number_that_was_drawn_twice_is_drawn_again() {
    let lab = Lab::new();
    let client = lab.client(1);
    let number = |answer| match answer {
        Answer::Done(file) => file.number.counter,
        other => panic!("{other:?}"),
    };
    let make = async |name: &str, replace: bool, draws: &[u64]| {
        let file = NewFile {
            place: place(&client, name),
            inode: inode(name),
            owner: None,
            replace: replace.into(),
        };
        let (mut draws, mut drawn) = (draws.iter(), 0);
        let draw = || {
            drawn += 1;
            Ok(*draws.next().expect("enough numbers"))
        };
        let made = client.create_as(file, soon(), draw).await;
        (done(made), drawn)
    };
    assert_eq!(number(make("a", false, &[7]).await.0), 7);
    assert_eq!(number(make("b", false, &[7, 7, 8]).await.0), 8);
    assert_eq!(number(make("b", true, &[8, 9]).await.0), 9);
    assert_eq!(read(&client, "a").await, "a");
    // A name that is there is no reason to draw again, and draws have an end.
    let (answer, drawn) = make("a", false, &[10]).await;
    assert_eq!((answer, drawn), (Answer::Refused(Refused::Exists), 1));
    let (answer, drawn) = make("c", false, &[7; 9]).await;
    assert_eq!((answer, drawn), (Answer::Refused(Refused::Exists), 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_waits_for_its_admission_and_then_both_see_what_each_writes() {
    let lab = Lab::new();
    let (one, two) = (lab.client(1), lab.client(2));
    offline(&two).await;
    let early = two
        .running(Instant::now() + Duration::from_millis(300))
        .await;
    let Err(ClientError::Deadline { connection }) = early else {
        panic!("{early:?}");
    };
    let Connection::Offline(lost) = connection else {
        panic!("{connection}");
    };
    assert_eq!(lost.trouble, Trouble::NotMember);
    lab.admit(&one, 2).await;
    two.running(soon()).await.unwrap();
    done(one.call(create(&one, "a", "by one"), soon()).await);
    assert_eq!(read(&two, "a").await, "by one");
    done(two.call(create(&two, "b", "by two"), soon()).await);
    assert_eq!(read(&one, "b").await, "by two");
    let status = one.status(soon()).await.unwrap();
    assert_eq!(status.devices.len(), 2);
    assert!(status.devices.iter().all(|device| device.active));
    assert!(status.agreed() > 0 && status.differing.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_device_is_told_so_before_the_deadline_of_its_call() {
    let lab = Lab::new();
    let (one, two) = (lab.client(1), lab.client(2));
    lab.admit(&one, 2).await;
    two.running(soon()).await.unwrap();
    let device = trust_shared::principal::Device(2);
    let remove = Call::Decide(Decision::RemoveDevice { device });
    assert_eq!(done(one.call(remove, soon()).await), Answer::Settled);
    let called = two.call(create(&two, "a", "by two"), Instant::now() + FOR_EVER);
    let told = tokio::time::timeout(Duration::from_secs(60), called).await;
    let Ok(Err(ClientError::Deadline { connection })) = told else {
        panic!("{told:?}");
    };
    let Connection::Offline(lost) = connection else {
        panic!("{connection}");
    };
    assert_eq!(lost.trouble, Trouble::NotMember);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_may_break_at_every_message_and_each_call_has_its_effect_once() {
    let lab = Lab::new();
    let wire = Arc::default();
    let client = lab.client_through(1, &wire);
    client.running(soon()).await.unwrap();
    let mut broken = 0;
    for messages in 0..14 {
        let before = wire.dialed.load(std::sync::atomic::Ordering::SeqCst);
        wire.break_after(messages);
        for number in 0..3 {
            let name = format!("{messages}-{number}");
            let made = client.call(create(&client, &name, &name), soon()).await;
            // Refused as existing: it would have had effect twice.
            assert!(matches!(done(made), Answer::Done(_)), "{name}");
            assert_eq!(read(&client, &name).await, name);
        }
        broken += wire.dialed.load(std::sync::atomic::Ordering::SeqCst) - before;
    }
    assert!(broken >= 10, "{broken}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_stops_and_starts_again_is_found_again_and_has_lost_nothing() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    for round in 0..3 {
        let before = format!("before {round}");
        done(client.call(create(&client, &before, "x"), soon()).await);
        lab.door.close();
        offline(&client).await;
        let late = Instant::now() + Duration::from_millis(300);
        let waiting = format!("waiting {round}");
        let error = client.call(create(&client, &waiting, "y"), late).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("the server cannot be reached"), "{error}");
        lab.serve();
        assert_eq!(read(&client, &before).await, "x");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_client_loses_nothing_that_it_was_told() {
    let lab = Lab::new();
    let mut told: Vec<String> = Vec::new();
    for round in 0..6 {
        let client = lab.client(1);
        client.running(soon()).await.unwrap();
        for name in &told {
            assert_eq!(read(&client, name).await, *name);
        }
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..8 {
            let (client, name) = (client.clone(), format!("{round}-{number}"));
            calls.spawn(async move {
                let made = client.call(create(&client, &name, &name), soon()).await;
                made.is_ok().then_some(name)
            });
        }
        while told.len() < (round + 1) * 3 {
            told.extend(calls.join_next().await.unwrap().unwrap());
        }
        // The others are on their way.
        lab.kill(1, client).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_durable_before_a_call_names_them_and_others_read_them_verified() {
    let lab = Lab::new();
    let wire = Arc::default();
    let (one, two) = (lab.client_through(1, &wire), lab.client(2));
    one.running(soon()).await.unwrap();
    lab.admit(&one, 2).await;
    two.running(soon()).await.unwrap();
    for messages in 0..4 {
        let content = Bytes::from(vec![messages as u8; 100_000]);
        let (handle, _) = one.hasher().seal::<Data>(content.clone());
        let frame = Packer::new().pack(trust::handle::Kind::Data, &content);
        let record = Record {
            handle: handle.any(),
            frame: frame.unwrap(),
        };
        wire.break_after(messages);
        let sink = one.sink(Duration::from_secs(30));
        let put = async {
            sink.put(&[record]).await.unwrap();
            sink.flush().await.unwrap();
        };
        tokio::time::timeout(Duration::from_secs(60), put)
            .await
            .unwrap();
        let absent: Handle = one
            .hasher()
            .seal::<Data>(Bytes::from_static(b"absent"))
            .0
            .any();
        assert_eq!(sink.touch(&[handle.any(), absent]).await.unwrap(), [absent]);
        let found = two.blocks().get(
            &handle,
            reader::Expect::Nothing,
            reader::Fetch::Until(soon()),
        );
        assert_eq!(*found.await.unwrap().bytes(), content);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beyond_the_bound_wait_and_dropped_calls_make_room() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    lab.door.close();
    let late = Instant::now() + Duration::from_millis(400);
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..Options::default().calls + 50 {
        let (client, name) = (client.clone(), number.to_string());
        calls.spawn(async move { client.call(create(&client, &name, "x"), late).await });
    }
    while let Some(answer) = calls.join_next().await {
        let error = answer.unwrap().unwrap_err();
        assert!(matches!(error, ClientError::Deadline { .. }), "{error}");
    }
    lab.serve();
    done(client.call(create(&client, "after", "x"), soon()).await);
    assert_eq!(read(&client, "after").await, "x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_engine_of_a_home_waits_and_takes_over_when_the_first_ends() {
    let lab = Lab::new();
    let first = lab.client(1);
    first.running(soon()).await.unwrap();
    done(first.call(create(&first, "a", "x"), soon()).await);
    let home = lab.home(1);
    let options = Options::default();
    let soon_over = Instant::now() + Duration::from_millis(100);
    let second = Parts::of(&home, &options).unwrap().open(&home, soon_over);
    let error = second.err().unwrap().to_string();
    assert!(error.contains("locked"), "{error}");
    first.close(soon()).await.unwrap();
    let second = lab.client(1);
    assert_eq!(read(&second, "a").await, "x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_of_a_device_that_never_pauses_does_not_wait_for_its_next_sync() {
    let lab = Lab::new();
    let (busy, reader) = (lab.client(1), lab.client(2));
    busy.running(soon()).await.unwrap();
    lab.admit(&busy, 2).await;
    reader.running(soon()).await.unwrap();
    // With several calls at a time there is always an entry in flight.
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let busy = busy.clone();
        writers.spawn(async move {
            for number in 0.. {
                let name = format!("{writer}-{number}");
                done(busy.call(create(&busy, &name, "x"), soon()).await);
            }
        });
    }
    let mut quick = 0;
    // On a busy machine some are slow for other reasons.
    for number in 0..60 {
        if quick == 3 {
            break;
        }
        let name = format!("0-{number}");
        while look(&reader, &name).await == Answer::Refused(Refused::NotFound) {}
        let began = Instant::now();
        // It rests on the newest entries of the device, which change the root directory all the time.
        let all = Call::List {
            directory: crate::files::FileRef::File(reader.root()),
            after: None,
            most: 1,
            inodes: false,
        };
        let listed = done(reader.call(all, soon()).await);
        assert!(matches!(listed, Answer::Listed { .. }), "{listed:?}");
        quick += u32::from(began.elapsed() < state::journal::SYNC_WITHIN / 2);
    }
    assert_eq!(quick, 3, "all wait for a sync");
    writers.abort_all();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_that_the_journal_cannot_keep_is_refused() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    done(client.call(create(&client, "a", "x"), soon()).await);
    // Each attribute is set and removed again, so the file can have what is left.
    let attribute = |number: u32| {
        let name = Bytes::from(format!("user.{number}"));
        let value = Bytes::from(vec![b'v'; 60_000]);
        [(name.clone(), Some(value)), (name, None)]
    };
    let call = |attributes: u32| Call::SetAttributes {
        file: FileRef::Place(place(&client, "a")),
        attributes: Attributes {
            xattrs: (0..attributes).flat_map(attribute).collect(),
            ..Attributes::default()
        },
        expect: None,
    };
    let made = done(client.call(call(1), soon()).await);
    assert!(matches!(made, Answer::Done(_)), "{made:?}");
    for attributes in [2, 5] {
        let refused = done(client.call(call(attributes), soon()).await);
        assert_eq!(refused, Answer::Refused(Refused::TooLarge));
    }
    lab.kill(1, client).await;
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    assert_eq!(read(&client, "a").await, "x");
}
