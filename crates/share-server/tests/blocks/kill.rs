//! A real process on real files that is killed while clients store: every block that it acknowledged is there.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use share_server::blocks::{Options, Server, Storage};
use store::Repository;
use wal::FileDevice;

use crate::support::{self, DEVICE_BYTES, block, hasher, key, much};

const DIRECTORY: &str = "BULLA_TEST_BLOCKS";
const ROUNDS: u64 = 3;
const CLIENTS: u64 = 4;

fn storage(dir: &Path) -> Storage {
    let device = Arc::new(FileDevice::open(&dir.join("log")).unwrap());
    let repository = Repository::open_or_create(dir.join("repository")).unwrap();
    let start = Instant::now();
    // Short, so that blocks move all the time.
    let options = Options {
        window: Duration::from_millis(200),
        ..Options::default()
    };
    let clock = Arc::new(move || start.elapsed());
    Storage::open(
        device,
        &key(),
        repository,
        hasher(),
        clock,
        options,
        &mut |_| {},
    )
    .unwrap()
}

/// The blocks of a number: mostly one, some of which are as long as they get in files, and now and then so many that they
/// bypass the log.
fn numbered(number: u64) -> Vec<trust::Record> {
    match number % 20 {
        3 => much(100 * number),
        7 | 8 => vec![block(100 * number, 64 << 10)],
        _ => vec![block(100 * number, 3000)],
    }
}

/// Stores blocks and prints the number of each that is acknowledged, until it is killed.
#[test]
#[ignore = "the process that killed_server_has_every_acknowledged_block kills"]
fn server_that_is_killed() {
    let dir = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let first: u64 = std::env::var("BULLA_TEST_FIRST").unwrap().parse().unwrap();
    let server = Server::start(storage(&dir)).unwrap();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                let session = support::session(server.storage(), client as u8);
                for number in (first + client..).step_by(CLIENTS as usize) {
                    server.store(session, numbered(number)).unwrap();
                    writeln!(std::io::stdout(), "stored {number}").unwrap();
                }
            });
        }
    });
}

#[test]
fn killed_server_has_every_acknowledged_block() {
    let dir = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(dir.path().join("log")).unwrap();
    file.set_len(DEVICE_BYTES).unwrap();
    drop(file);
    support::format(&FileDevice::open(&dir.path().join("log")).unwrap());
    let mut told = Vec::new();
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "--nocapture",
                "kill::server_that_is_killed",
            ])
            .env(DIRECTORY, dir.path())
            .env("BULLA_TEST_FIRST", (round * 1_000_000).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut until = None;
        for line in lines.map_while(Result::ok) {
            let Some(number) = line.split("stored ").nth(1) else {
                continue;
            };
            told.push(number.parse::<u64>().unwrap());
            // Time enough for some moves.
            let until = *until
                .get_or_insert_with(|| Instant::now() + Duration::from_millis(700 + 130 * round));
            if Instant::now() > until {
                child.kill().unwrap(); // lines that it wrote before still count
            }
        }
        child.wait().unwrap();
        let storage = storage(dir.path());
        let session = support::session(&storage, 1);
        for number in &told {
            for expected in numbered(*number) {
                let found = storage.retrieve(session, &expected.handle).unwrap();
                let is_there = found.as_ref() == Some(&expected);
                assert!(is_there, "block {number}, round {round}");
            }
        }
        println!("round {round}: {} blocks acknowledged", told.len());
    }
    assert!(told.len() > 30, "{} blocks", told.len());
}
