//! Entries that the server does not order, because blocks before them are missing, go again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use store::BlockSink;
use trust::{Handle, Record, frame::Packer, handle::Kind};

use super::hosted::Wire;
use super::{Lab, create, done, read, soon};
use crate::files::Answer;

/// A block under a name that is not its own: no server takes it.
fn wrong(number: u8) -> Record {
    let frame = Packer::new().pack(Kind::Data, b"another").unwrap();
    let handle = Handle::from_bytes([number; 32]);
    Record { handle, frame }
}

/// One program of this device stores what the server refuses, again and again; another one writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_write_while_blocks_of_another_one_are_refused() {
    let lab = Lab::new();
    let wire: Arc<Wire> = Arc::default();
    let client = lab.client_through(1, &wire);
    client.running(soon()).await.unwrap();
    let sink = client.sink(Duration::from_secs(60));
    let puts = (0..8).map(|number| {
        let sink = sink.clone();
        tokio::spawn(async move { sink.put(&[wrong(number)]).await })
    });
    let puts: Vec<_> = puts.collect();
    let mut files = 0;
    while lab.door.unstored() < 5 {
        files += 1;
        let answer = done(
            client
                .call(create(&client, &files.to_string(), "x"), soon())
                .await,
        );
        assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
    }
    puts.iter().for_each(|put| put.abort());
    assert_eq!(wire.dialed.load(Ordering::SeqCst), 1, "the session goes on");
    client.close(soon()).await.unwrap();
    // Each change was made once, and the journal knows.
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    for file in 1..=files {
        assert_eq!(read(&client, &file.to_string()).await, "x");
    }
}
