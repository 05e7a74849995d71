//! Calls that travel with the blocks that they name, to a real server: over a connection that breaks at each message, and
//! with blocks that the server refuses.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use store::BlockSink;
use trust::array::{ArrayRoot, Builder, Extent};
use trust::device::DeviceKey;
use trust::inode::{Content, FileContent, Xattrs};
use trust::{Handle, Record, frame::Packer, handle::Kind};

use super::hosted::{Hosted, Wire};
use sim::time::eventually;

use super::{Lab, create, done, inode, key, look, offline, place, read, soon};
use crate::client::again::Blocks;
use crate::client::connection::Dial;
use crate::client::own::Own;
use crate::client::{Client, ClientError, Options};
use crate::files::{Answer, Call, Refused};
use crate::outbox::{FLIGHT_BLOCKS, Flight, Unstored};

/// A block of a volume, and content that it is. Shorter content lies in the inode itself.
fn block(client: &Client, text: &str) -> (Record, Content) {
    let text = text.repeat(100);
    let handle = client.hasher().name(Kind::Data, text.as_bytes());
    let frame = Packer::new().pack(Kind::Data, text.as_bytes()).unwrap();
    let root = ArrayRoot {
        len: text.len() as u64,
        height: 0,
        top: *handle.as_bytes(),
    };
    let record = Record { handle, frame };
    (record, Content::Regular(FileContent::Array(root)))
}

/// A new file with content in a block.
fn create_with(client: &Client, path: &str, content: Content) -> Call {
    let mut inode = inode("");
    inode.size = content.size();
    inode.content = content;
    Call::Create {
        place: place(client, path),
        number: client.new_number().unwrap(),
        inode: Box::new(inode),
        owner: None,
        replace: false.into(),
    }
}

/// Whether the server has the block.
async fn has(client: &Client, record: &Record) -> bool {
    let sink = client.sink(std::time::Duration::from_secs(60));
    sink.touch(&[record.handle]).await.unwrap().is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_and_its_blocks_are_one_flight_over_a_connection_that_breaks_anywhere() {
    let lab = Lab::new();
    let wire: Arc<Wire> = Arc::default();
    let client = lab.client_through(1, &wire);
    client.running(soon()).await.unwrap();
    for messages in 0..6 {
        let text = format!("content {messages}");
        let (record, content) = block(&client, &text);
        let call = create_with(&client, &messages.to_string(), content);
        wire.break_after(messages);
        let flight = Flight::of(vec![record.clone()], None);
        let answer = done(client.call_with(call, flight, soon()).await);
        assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
        wire.break_after(-1);
        assert!(has(&client, &record).await, "{messages}");
    }
    let dialed = wire.dialed.load(Ordering::SeqCst);
    assert!(dialed > 3, "{dialed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_whose_blocks_are_refused_has_no_effect_and_others_go_on() {
    let lab = Lab::new();
    let wire: Arc<Wire> = Arc::default();
    let client = lab.client_through(1, &wire);
    client.running(soon()).await.unwrap();
    for (path, is_full) in [("a", true), ("b", false)] {
        wire.is_full.store(is_full, Ordering::SeqCst);
        let (mut record, content) = block(&client, "content");
        record.frame = Packer::new().pack(Kind::Data, b"another").unwrap();
        let call = create_with(&client, path, content);
        let flight = Flight::of(vec![record.clone()], None);
        let refused = {
            let client = client.clone();
            tokio::spawn(async move { client.call_with(call, flight, soon()).await })
        };
        for other in 0..20 {
            let path = format!("{path}{other}");
            let answer = done(client.call(create(&client, &path, "x"), soon()).await);
            assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
        }
        match refused.await.unwrap() {
            Err(ClientError::Unstored { is_full: told, .. }) => assert_eq!(told, is_full),
            other => panic!("{other:?}"),
        }
        assert_eq!(
            look(&client, path).await,
            Answer::Refused(Refused::NotFound)
        );
        assert_eq!(read(&client, &format!("{path}19")).await, "x");
    }
    assert_eq!(wire.dialed.load(Ordering::SeqCst), 1, "the session goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_content_waits_for_the_server_and_its_end_travels() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let record = |number: u64| {
        let noise = sim::random::noise(number, 300 << 10);
        let frame = Packer::new().pack(Kind::Data, &noise).unwrap();
        let handle = client.hasher().name(Kind::Data, &noise);
        Record { handle, frame }
    };
    let records: Vec<Record> = (0..5).map(record).collect();
    let boarding = client.boarding(std::time::Duration::from_secs(60));
    for record in &records {
        boarding.put(std::slice::from_ref(record)).await.unwrap();
    }
    let flight = boarding.flight();
    let handles = |records: &[Record]| records.iter().map(|it| it.handle).collect::<Vec<Handle>>();
    assert_eq!(handles(flight.records()), handles(&records[3..]));
    for (at, record) in records.iter().enumerate() {
        assert_eq!(has(&client, record).await, at < 3);
    }
}

/// As an edit puts it: 64 KiB in a block, 1 MiB of blocks together, and then the nodes of the tree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_mebibyte_of_content_that_does_not_compress_travels() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let records = (0..16).map(|number| {
        let noise = sim::random::noise(number, 64 << 10);
        let frame = Packer::new().pack(Kind::Data, &noise).unwrap();
        let handle = client.hasher().name(Kind::Data, &noise);
        Record { handle, frame }
    });
    let records: Vec<Record> = records.collect();
    let (node, _) = block(&client, "a node");
    let boarding = client.boarding(std::time::Duration::from_secs(60));
    boarding.put(&records).await.unwrap();
    boarding.put(&[node]).await.unwrap();
    assert_eq!(boarding.flight().records().len(), 17);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_find_no_memory_put_their_blocks_first() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let mut flights = Vec::new();
    for number in 0..12 {
        let noise = sim::random::noise(number, 1 << 20);
        let frame = Packer::new().pack(Kind::Data, &noise[..1_000_000]).unwrap();
        let handle = client.hasher().name(Kind::Data, &noise[..1_000_000]);
        let boarding = client.boarding(std::time::Duration::from_secs(60));
        boarding.put(&[Record { handle, frame }]).await.unwrap();
        flights.push(boarding.flight());
    }
    assert_eq!(flights.iter().filter(|it| !it.is_empty()).count(), 8);
}

/// A client of machine 1 whose process is killed while its call, with these contents in blocks, is in the journal and
/// nothing of it has reached the server.
async fn killed_with(lab: &Lab, texts: &[&str]) -> Vec<(Record, Content)> {
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let contents: Vec<_> = texts.iter().map(|text| block(&client, text)).collect();
    lab.door.close();
    offline(&client).await;
    let journal = lab.home(1).directory().join("journal");
    let before = std::fs::metadata(&journal).unwrap().len();
    let calls = contents.iter().zip(texts).map(|((record, content), path)| {
        let call = create_with(&client, path, content.clone());
        let (client, flight) = (client.clone(), Flight::of(vec![record.clone()], None));
        tokio::spawn(async move { client.call_with(call, flight, soon()).await })
    });
    let calls: Vec<_> = calls.collect();
    // One entry is in flight, so calls go one after the other.
    eventually("the call is in the journal", || {
        std::fs::metadata(&journal).unwrap().len() > before || before > 1 << 20
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    lab.kill(1, client).await;
    calls.iter().for_each(|call| call.abort());
    lab.serve();
    contents
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_of_a_device_that_was_killed_is_given_up_without_its_blocks() {
    let lab = Lab::new();
    let contents = killed_with(&lab, &["gone"]).await;
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let there = look(&client, "gone").await;
    assert_eq!(there, Answer::Refused(Refused::NotFound));
    assert!(!has(&client, &contents[0].0).await);
    // It writes on.
    let answer = done(client.call(create(&client, "next", "x"), soon()).await);
    assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
}

/// The server had room when the call was made, and has none, or takes the block no more, when the device comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_that_was_killed_resumes_at_a_server_that_takes_no_blocks() {
    for why in [Unstored::Full, Unstored::Refused] {
        let lab = Lab::new();
        let contents = killed_with(&lab, &["kept"]).await;
        let wire: Arc<Wire> = Arc::default();
        *wire.refuses.lock().unwrap() = Some(why);
        let (client, driver) = lab.driver_through(1, &wire);
        let own = Own::of(lab.home(1).directory().to_owned(), client.hasher().clone());
        own.keep(std::slice::from_ref(&contents[0].0)).await;
        tokio::spawn(driver.with_own(Some(own)).run());
        client.running(soon()).await.unwrap();
        let there = look(&client, "kept").await;
        assert_eq!(there, Answer::Refused(Refused::NotFound), "{why:?}");
        let answer = done(client.call(create(&client, "next", "x"), soon()).await);
        assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_of_a_device_that_was_killed_runs_again_with_blocks_that_the_device_has_kept() {
    let lab = Lab::new();
    let contents = killed_with(&lab, &["kept"]).await;
    let (record, content) = &contents[0];
    let (client, driver) = lab.driver(1);
    let own = Own::of(lab.home(1).directory().to_owned(), client.hasher().clone());
    own.keep(std::slice::from_ref(record)).await;
    tokio::spawn(driver.with_own(Some(own)).run());
    client.running(soon()).await.unwrap();
    assert!(has(&client, record).await);
    let Answer::Found(file) = look(&client, "kept").await else {
        panic!("it is not there");
    };
    assert_eq!(&file.inode.content, content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_that_waited_while_the_server_may_have_removed_its_blocks_is_taken_back() {
    let lab = Lab::new();
    for (away, is_taken_back) in [(Duration::ZERO, true), (Duration::from_secs(3600), false)] {
        let wire: Arc<Wire> = Arc::default();
        let options = Options {
            away,
            ..Options::default()
        };
        let client = lab.client_with(1, &wire, &options);
        client.running(soon()).await.unwrap();
        let name = format!("{is_taken_back}");
        let (record, content) = block(&client, &name);
        client
            .sink(Duration::from_secs(60))
            .put(&[record])
            .await
            .unwrap();
        wire.break_after(0);
        let _ = client.look(Call::Members, soon()).await;
        offline(&client).await;
        let with = create_with(&client, &name, content);
        let without = create(&client, &format!("{name} without blocks"), "x");
        let (with, without) = (client.call(with, soon()), client.call(without, soon()));
        let back = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            wire.break_after(-1);
        };
        let (with, without, ()) = tokio::join!(with, without, back);
        done(without);
        match with {
            Err(ClientError::Interrupted) if is_taken_back => {}
            with => assert!(!is_taken_back && matches!(done(with), Answer::Done(_))),
        }
        client.close(soon()).await.unwrap();
    }
}

/// A tree of so many blocks, and all its records.
fn tree(client: &Client, blocks: u64) -> (ArrayRoot, Vec<Record>) {
    let mut records = Vec::new();
    let mut packer = Packer::new();
    let mut builder = Builder::new(client.hasher(), |handle, bytes: &bytes::Bytes| {
        let frame = Packer::new().pack(Kind::Array, bytes).unwrap();
        let handle = handle.any();
        records.push(Record { handle, frame });
    });
    let mut leaves = Vec::new();
    for number in 0..blocks {
        let bytes = number.to_le_bytes().repeat(100);
        let handle = client.hasher().name(Kind::Data, &bytes);
        let frame = packer.pack(Kind::Data, &bytes).unwrap();
        leaves.push(Record { handle, frame });
        let handle = Handle::from_bytes(*handle.as_bytes());
        builder.push(Extent::Data { handle, len: 800 }).unwrap();
    }
    let root = builder.finish().unwrap().unwrap();
    records.extend(leaves);
    (root, records)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_content_is_looked_at_with_few_messages_and_not_from_its_start_again() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    // A device has one session.
    client.clone().close(soon()).await.unwrap();
    let wire: Arc<Wire> = Arc::default();
    let dial = Hosted {
        door: Arc::clone(&lab.door),
        device: DeviceKey::from(&key(1).public()),
        wire: Arc::clone(&wire),
    };
    let (line, _deliveries) = dial.dial().await.unwrap();
    let (one, other) = (tree(&client, 600), tree(&client, 601));
    line.put(&one.1).await.unwrap();
    // Its last block is missing.
    line.put(&other.1[..other.1.len() - 1]).await.unwrap();
    let blocks = Blocks {
        line,
        own: None,
        hasher: client.hasher().clone(),
    };
    let before = wire.sent.load(Ordering::SeqCst);
    let mut seen = Vec::new();
    let roots = [one.0, other.0];
    blocks.look(&roots[..1], &mut seen).await.unwrap();
    assert_eq!(seen, [(one.0, true)]);
    let messages = wire.sent.load(Ordering::SeqCst) - before;
    assert!(messages <= 8, "{messages}");
    seen.clear();
    blocks.look(&roots, &mut seen).await.unwrap();
    assert_eq!(seen, [(one.0, true), (other.0, false)]);
    seen.clear();
    wire.break_after(i64::try_from(messages).unwrap());
    assert!(blocks.look(&roots, &mut seen).await.is_err());
    assert_eq!(seen, [(one.0, true)], "it is not looked at again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_that_was_killed_resumes_although_a_look_at_blocks_panics() {
    let lab = Lab::new();
    killed_with(&lab, &["gone"]).await;
    let wire: Arc<Wire> = Arc::default();
    wire.panics.store(true, Ordering::SeqCst);
    let client = lab.client_through(1, &wire);
    client.running(soon()).await.unwrap();
    assert!(!wire.panics.load(Ordering::SeqCst));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_put_first_after_a_refusal_until_the_server_takes_some() {
    let lab = Lab::new();
    let wire: Arc<Wire> = Arc::default();
    let client = lab.client_through(1, &wire);
    client.running(soon()).await.unwrap();
    let boarded = async |text: &str| {
        let (record, _) = block(&client, text);
        let boarding = client.boarding(std::time::Duration::from_secs(60));
        boarding.put(std::slice::from_ref(&record)).await.unwrap();
        (boarding.flight(), record)
    };
    let (flight, _) = boarded("before").await;
    assert!(!flight.is_empty());
    *wire.refuses.lock().unwrap() = Some(Unstored::Full);
    let (record, content) = block(&client, "content");
    let call = create_with(&client, "a", content);
    let flight = Flight::of(vec![record], None);
    match client.call_with(call, flight, soon()).await {
        Err(ClientError::Unstored { is_full: true, .. }) => {}
        other => panic!("{other:?}"),
    }
    *wire.refuses.lock().unwrap() = None;
    let (flight, record) = boarded("first").await;
    assert!(flight.is_empty());
    assert!(has(&client, &record).await);
    let (flight, record) = boarded("together").await;
    assert!(!flight.is_empty());
    assert!(!has(&client, &record).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_blocks_than_a_message_names_do_not_travel_together() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let (_, records) = tree(&client, FLIGHT_BLOCKS as u64 + 1);
    let boarding = client.boarding(std::time::Duration::from_secs(60));
    for some in records.chunks(100) {
        boarding.put(some).await.unwrap();
    }
    assert!(boarding.flight().records().len() < 200);
    assert!(has(&client, &records[0]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_names_content_and_long_attributes() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let (content, _) = tree(&client, 2);
    let (attributes, _) = tree(&client, 3);
    let array = Content::Regular(FileContent::Array(content));
    let mut call = create_with(&client, "a", array);
    assert_eq!(call.arrays(), [content]);
    if let Call::Create { inode, .. } = &mut call {
        inode.xattrs = Xattrs::Stored(attributes);
    }
    assert_eq!(call.arrays(), [content, attributes]);
}
