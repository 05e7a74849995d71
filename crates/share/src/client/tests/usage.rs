//! What a server says of its room stops nobody from writing.

use std::sync::Arc;
use std::time::Duration;

use store::BlockSink;
use trust::{Record, frame::Packer, handle::Kind};
use wire::shared::Usage;

use super::hosted::Wire;
use super::{Lab, create, done, soon};
use crate::files::Answer;

fn usage(number: u64) -> Usage {
    Usage {
        today_bytes: number,
        daily_bytes: number,
        temporary_bytes: number,
        temporary_most_bytes: number,
        disk_bytes: number,
        disk_free_bytes: number,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_says_it_has_no_room_or_all_of_it_stops_no_writer() {
    let lab = Lab::new();
    let wire: Arc<Wire> = Arc::default();
    let client = lab.client_through(1, &wire);
    client.running(soon()).await.unwrap();
    assert!(
        client.usage(soon()).await.is_err(),
        "the server says nothing"
    );
    for (file, said) in [("a", 0), ("b", u64::MAX), ("c", u64::MAX - 1)] {
        *wire.usage.lock().unwrap() = Some(usage(said));
        let told = client.usage(soon()).await.unwrap();
        assert_eq!(told, usage(said));
        let (total, free) = told.blocks(4096);
        assert!(free <= total);
        let content = file.repeat(5000).into_bytes();
        let handle = client.hasher().name(Kind::Data, &content);
        let frame = Packer::new().pack(Kind::Data, &content).unwrap();
        let sink = client.sink(Duration::from_secs(60));
        sink.put(&[Record { handle, frame }]).await.unwrap();
        let made = done(client.call(create(&client, file, "x"), soon()).await);
        assert!(matches!(made, Answer::Done(_)), "{made:?}");
    }
}
