//! Calls of programs on one and on several devices; kills, lost connections, a server that stops.

use super::*;
use crate::client::Phase;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn founder_writes_and_reads_and_finds_it_again_after_a_restart() {
    let lab = Lab::new();
    let client = lab.client(1);
    client.running(soon()).await.unwrap();
    let made = done(
        client
            .call(create(&client, "letter", "dear all"), soon())
            .await,
    );
    assert!(matches!(made, Answer::Done(_)), "{made:?}");
    assert_eq!(read(&client, "letter").await, "dear all");
    client.close(soon()).await.unwrap();

    let client = lab.client(1);
    assert_eq!(read(&client, "letter").await, "dear all");
    let again = client.call(create(&client, "letter", "x"), soon()).await;
    assert!(matches!(
        done(again),
        Answer::Refused(crate::files::Refused::Exists)
    ));
    let status = client.status(soon()).await.unwrap();
    assert!(matches!(status.phase, Phase::Running));
    assert_eq!(status.devices.len(), 1);
    assert!(status.log.size >= 5, "{:?}", status.log);
}
