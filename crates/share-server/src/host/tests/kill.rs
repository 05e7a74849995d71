//! A real process on real files that is killed while devices write: every leaf and block that it acknowledged is
//! there, at its place.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use trust::device::DeviceKey;

use super::super::{Host, HostOptions};
use super::devices::{Device, admit, lock, nonce};
use super::world::{RING_BYTES, genesis_policy, key, orderer};
use ordering::engine::Request;

const DIRECTORY: &str = "BULLA_TEST_HOST";
const ROUND: &str = "BULLA_TEST_ROUND";
const ROUNDS: u8 = 3;
const DEVICES: u8 = 4;

fn host(dir: &Path) -> Arc<Host> {
    let options = HostOptions {
        // So that leaves move all the time.
        move_bytes: 20_000,
        ..HostOptions::default()
    };
    Host::open(dir, orderer(), options).unwrap()
}

fn connect(host: &Host, number: u8) -> (Device, std::sync::mpsc::Receiver<()>) {
    let (send, receive) = sync_channel(1);
    let key = key(number);
    let me = DeviceKey::from(&key.public());
    let wake = Arc::new(move || {
        let _ = send.try_send(()); // it is woken already
    });
    let session = host.connect(me, wake).unwrap();
    (
        Device::of(session, Arc::new(AtomicU64::new(0)), key).unwrap(),
        receive,
    )
}

/// Waits until the device is sent a leaf that comes after what it has.
fn until_sent(device: &mut Device, woken: &std::sync::mpsc::Receiver<()>, leaf: &[u8]) {
    let from = device.leaves.len();
    loop {
        let deliveries = device.draw().unwrap();
        let refused = deliveries.iter().find_map(|delivery| delivery.refused);
        assert_eq!(refused, None);
        if device.leaves[from..].iter().any(|sent| sent == leaf) {
            return;
        }
        woken.recv_timeout(Duration::from_secs(30)).unwrap();
    }
}

fn write(
    device: &mut Device,
    woken: &std::sync::mpsc::Receiver<()>,
    request: &Request<ordering::roster::Product>,
) {
    let Request::Entry(entry) = request else {
        unreachable!()
    };
    device.session.receive(request).unwrap();
    until_sent(device, woken, entry.signed().bytes());
}

/// Prints what is acknowledged, until it is killed.
#[test]
#[ignore = "the process that killed_server_has_every_acknowledged_leaf kills"]
fn host_that_is_killed() {
    let dir = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let round: u8 = std::env::var(ROUND).unwrap().parse().unwrap();
    let host = host(&dir);
    if round == 0 {
        let (mut one, woken) = connect(&host, 1);
        one.draw().unwrap();
        let resume = one.resume(99);
        write(&mut one, &woken, &resume);
        for number in 2..=DEVICES {
            let entry = one.entry(vec![admit(number)]);
            write(&mut one, &woken, &entry);
        }
        let entry = one.entry(vec![lock(1)]);
        write(&mut one, &woken, &entry);
    }
    let printed = Mutex::new(());
    std::thread::scope(|scope| {
        for number in 1..=DEVICES {
            let (host, printed) = (&host, &printed);
            scope.spawn(move || {
                let (mut device, woken) = connect(host, number);
                device.draw().unwrap();
                let resume = device.resume(round + 1);
                write(&mut device, &woken, &resume);
                for count in 0.. {
                    let mark = nonce(u64::from(number) << 32 | u64::from(round) << 24 | count);
                    device.session.receive(&Request::Mark(mark)).unwrap();
                    let entry = device.change();
                    write(&mut device, &woken, &entry);
                    let seen = device.seen();
                    let _turn = printed.lock().unwrap();
                    let root: String = seen.root.iter().map(|b| format!("{b:02x}")).collect();
                    writeln!(std::io::stdout(), "noted {} {root}", seen.size).unwrap();
                }
            });
        }
    });
}

#[test]
fn killed_server_has_every_acknowledged_leaf() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("server");
    let (_, genesis) = genesis_policy();
    Host::create(&dir, &genesis, &orderer().public(), RING_BYTES).unwrap();
    let mut noted = Vec::new();
    for round in 0..ROUNDS {
        noted.extend(killed(&dir, round));
        let host = host(&dir);
        let (mut device, _) = connect(&host, 1);
        device.draw().unwrap();
        let mut log = trust::history::Frontier::new();
        let mut roots = vec![log.root()];
        for leaf in &device.leaves {
            log.push(leaf).unwrap();
            roots.push(log.root());
        }
        for (size, root) in &noted {
            let found = roots.get(*size).map(|root| {
                let digits = root.iter().map(|b| format!("{b:02x}"));
                digits.collect::<String>()
            });
            assert_eq!(found.as_ref(), Some(root), "size {size}, round {round}");
        }
        println!(
            "round {round}: {} notes, {} leaves",
            noted.len(),
            roots.len()
        );
    }
    assert!(noted.len() > 30, "{} notes", noted.len());
}

/// Runs a server until it is killed; what it acknowledged.
fn killed(dir: &Path, round: u8) -> Vec<(usize, String)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "host::tests::kill::host_that_is_killed",
        ])
        .env(DIRECTORY, dir)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut noted = Vec::new();
    let mut until = None;
    for line in lines.map_while(Result::ok) {
        let Some((size, root)) = line
            .split("noted ")
            .nth(1)
            .and_then(|said| said.split_once(' '))
        else {
            continue;
        };
        noted.push((size.parse().unwrap(), root.to_owned()));
        // Time enough for some moves.
        let length = Duration::from_millis(900 + 170 * u64::from(round));
        let until = *until.get_or_insert_with(|| Instant::now() + length);
        if Instant::now() > until {
            child.kill().unwrap(); // lines that it wrote before still count
        }
    }
    child.wait().unwrap();
    noted
}
