//! Devices fold unasked, forget what is folded, and read the same as before.

use super::*;
use crate::client::Folding;

fn eager() -> Options {
    Options {
        folding: Folding {
            changes: 16,
            pause: Duration::ZERO,
        },
        ..Options::default()
    }
}

/// Waits until a device keeps few outlines.
async fn forgets(client: &Client, most: u64) {
    let late = Instant::now() + Duration::from_secs(120);
    loop {
        let status = client.status(soon()).await.unwrap();
        if status.outlines <= most {
            return;
        }
        assert!(Instant::now() < late, "{} outlines", status.outlines);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn write(client: &Client, path: &str, content: &str) {
    let call = Call::SetContent {
        file: crate::files::Which::Place(place(client, path)),
        content: inode(content).content,
        mtime: Mtime::default(),
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
