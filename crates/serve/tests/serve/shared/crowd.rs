//! Many devices at once, each with a session, half of which take no delivery: server and clients in processes of their
//! own. Two hundred always, ten thousand with BULLA_LONG=1.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serve::net::Limits;
use serve::shared::limits;
use share_server::host::HostOptions;
use trust::key::SecretKey;
use wire::shared::ServerAddress;

use super::device::{Device, has, soon};
use super::volume::{Running, directory, founder, options};

/// Set in the process that plays the server.
const ROLE: &str = "BULLA_TEST_SHARED_CROWD_SERVER";
/// The test that starts itself again to play the server.
const TEST: &str = "shared::crowd::crowd_of_devices_costs_little_and_each_is_served";

fn serve_for_ever() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let dir = directory();
        let limits = Limits {
            max_per_client: 16_384,
            ..limits()
        };
        let options = HostOptions {
            heartbeat: Duration::from_secs(10),
            ..options()
        };
        let server = Running::start(dir.path(), options, limits);
        println!("\nport {}", server.address.port);
        std::io::stdout().flush().unwrap();
        std::future::pending::<()>().await;
    });
}

struct OtherProcess(Child);

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl OtherProcess {
    fn start() -> (OtherProcess, ServerAddress) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(ROLE, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let port = lines
            .find_map(|line| line.strip_prefix("port ")?.parse().ok())
            .expect("the server's port");
        // After a minute the test harness of that process writes a line, and ends if nobody reads it.
        std::thread::spawn(move || lines.for_each(drop));
        let host = "127.0.0.1".to_owned();
        (OtherProcess(child), ServerAddress { host, port })
    }

    fn resident_bytes(&self) -> usize {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.0.id())).unwrap();
        let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
        pages * 4096
    }
}

fn device(number: usize) -> SecretKey {
    let mut seed = [0x55; 32];
    seed[..8].copy_from_slice(&(number as u64).to_le_bytes());
    SecretKey::from_seed(&seed)
}

#[test]
fn crowd_of_devices_costs_little_and_each_is_served() {
    if std::env::var_os(ROLE).is_some() {
        return serve_for_ever();
    }
    let long = std::env::var_os("BULLA_LONG").is_some();
    // The server has 10,000 sessions, one of which is the founder's.
    let devices = if long { 9_999 } else { 200 };
    let (server, to) = OtherProcess::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut ada = Device::start(&to, founder()).await;
        ada.begin().await;
        let keys: Vec<SecretKey> = (0..devices).map(device).collect();
        ada.admit(&keys).await;
        let size = ada.prefix().size;
        let before = server.resident_bytes();
        let mut all = Vec::with_capacity(devices);
        for key in keys {
            let mut one = Device::start(&to, key).await;
            one.until(|delivery| delivery.note.note().log.size >= size).await;
            all.push(one);
        }
        let each = server.resident_bytes().saturating_sub(before) / devices;
        let began = Instant::now();
        let (entry, body) = ada.entry(Vec::new());
        ada.order(&entry, Some(&body)).await;
        let own = began.elapsed();
        for one in all.iter_mut().step_by(2) {
            soon(one.until(|delivery| has(delivery, entry.hash()))).await;
        }
        println!(
            "{devices} devices, {each} bytes each; an entry is back after {own:?}, everywhere after {:?}",
            began.elapsed()
        );
        assert!(each < 96 << 10, "{each} bytes a device");
        assert!(own < Duration::from_secs(30), "{own:?}");
    });
}
