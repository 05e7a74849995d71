//! Compares docs/metrics.md with the output of the daemons: every metric is in the document with its type and
//! labels, and every metric of the document is served.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::shared_lab::{self, Orderer};
use crate::support::{Home, Mounted, skipped, wait_until};
use serde_json::Value;

/// A metric: its type, the names of its labels, and the values of those whose values are listed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
    words: BTreeSet<String>,
}

type Metrics = BTreeMap<String, Metric>;

/// The metrics that the document lists.
fn documented() -> Metrics {
    let mut metrics = Metrics::new();
    for line in include_str!("../../../../docs/metrics.md").lines() {
        let Some(row) = line.strip_prefix("| `") else {
            continue;
        };
        let cells: Vec<&str> = row.split(" | ").collect();
        let [name, kind, _unit, labels, _meaning] = cells[..] else {
            panic!("not five cells: {line}");
        };
        let mut metric = Metric {
            kind: kind.to_owned(),
            ..Metric::default()
        };
        // `volume`; `kind`: `a`, `b`
        for part in labels.split("; ") {
            let quoted = |text: &str| -> BTreeSet<String> {
                let odd = text.split('`').skip(1).step_by(2);
                odd.map(str::to_owned).collect()
            };
            match part.split_once(": ") {
                Some((label, words)) => {
                    metric.labels.extend(quoted(label));
                    metric.words.extend(quoted(words));
                }
                None => metric.labels.extend(quoted(part)),
            }
        }
        let name = name.trim_end_matches('`').to_owned();
        assert!(metrics.insert(name, metric).is_none(), "twice: {line}");
    }
    metrics
}

/// The metrics of a page, and their samples by name and labels.
fn read(page: &str) -> (Metrics, BTreeMap<String, f64>) {
    let (mut metrics, mut samples) = (Metrics::new(), BTreeMap::new());
    for line in page.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').unwrap();
            let metric = Metric {
                kind: kind.to_owned(),
                ..Metric::default()
            };
            assert!(
                metrics.insert(name.to_owned(), metric).is_none(),
                "twice: {name}"
            );
        } else if !line.starts_with('#') {
            let (what, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = what.split_once('{').unwrap_or((what, ""));
            let metric = metrics.get_mut(name).expect("a sample after its TYPE");
            for label in labels
                .trim_end_matches('}')
                .split("\",")
                .filter(|l| !l.is_empty())
            {
                let (label, word) = label.split_once("=\"").unwrap();
                metric.labels.insert(label.to_owned());
                if matches!(label, "kind" | "reason" | "call") {
                    metric.words.insert(word.trim_end_matches('"').to_owned());
                }
            }
            assert!(
                samples
                    .insert(what.to_owned(), value.parse().unwrap())
                    .is_none(),
                "{line}"
            );
        }
    }
    (metrics, samples)
}

/// The page at `address`.
pub fn get(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("Content-Type: text/plain; version=0.0.4"),
        "{head}"
    );
    page.to_owned()
}

/// A daemon that is killed on drop.
pub struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a daemon and returns its first `records` records.
pub fn start(home: &Home, args: &[&str], records: usize) -> (Daemon, Vec<Value>) {
    let mut command = home.command(args);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut daemon = Daemon(command.spawn().unwrap());
    let lines = BufReader::new(daemon.0.stdout.take().unwrap()).lines();
    let told = lines
        .take(records)
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap());
    let told = told.collect();
    (daemon, told)
}

/// Arguments that have metrics at a port that the system chooses.
pub const ANY_PORT: [&str; 2] = ["--metrics", "127.0.0.1:0"];

/// An attached device, and where its metrics are.
fn device(home: &Home) -> (Daemon, String) {
    fs::write(home.path("d"), [1; 1 << 20]).unwrap();
    let parts = ["d", "--log", "l", "--key-file", "k"];
    let enrol = [
        &["protect", "enrol"],
        &parts[..],
        &["--ring", "16MiB", "--anchor", "a"],
    ];
    home.run(&enrol.concat()).ends(0);
    let shown = ["--nbd", "./nbd", "--anchor", "a", "--foreground"];
    let attach = [
        &["--json", "protect", "attach"],
        &parts[..],
        &shown,
        &ANY_PORT,
    ];
    let (daemon, told) = start(home, &attach.concat(), 1);
    (daemon, told[0]["metrics"].as_str().unwrap().to_owned())
}

/// The server of a shared volume, and where its metrics are.
fn shared_server() -> ((Orderer, Daemon), String) {
    let (mut orderer, _ada) = shared_lab::founded(&[]);
    orderer.kill();
    let serve = ["--json", "serve", "repo", "--orderer-key", "key"];
    let any = ["--shared", "127.0.0.1:0"];
    let args = [&serve[..], &any, &ANY_PORT].concat();
    let (daemon, told) = start(&orderer.home, &args, 2);
    assert_eq!(told[0]["type"], "metrics");
    let at = told[0]["address"].as_str().unwrap().to_owned();
    ((orderer, daemon), at)
}

/// An engine of a shared volume that stays, with a beacon, and where its metrics are.
fn engine() -> ((Orderer, Home, Daemon), String) {
    let (orderer, ada) = shared_lab::founded(&[]);
    let _laptop = shared_lab::joined(&ada, "ada");
    ada.run(&["share", "beacon", "notes", "1", "--within", "1h"])
        .ends(0);
    let run = [&["--json", "share", "run", "notes"][..], &ANY_PORT].concat();
    let (daemon, told) = start(&ada, &run, 2);
    assert_eq!(told[0]["type"], "metrics");
    let at = told[0]["address"].as_str().unwrap().to_owned();
    // The first look at the engine is made at its start.
    wait_until("the engine is seen", || {
        get(&at).contains("bulla_share_beacon_overdue{")
    });
    ((orderer, ada, daemon), at)
}

#[test]
fn document_and_daemons_have_the_same_metrics() {
    if !Path::new("/dev/fuse").exists() {
        return skipped("metrics of a mount", "no /dev/fuse");
    }
    let home = Home::new();
    let volume = home.published();
    let serve = [
        "--json",
        "serve",
        "repo",
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
    ];
    let (_server, told) = start(&home, &serve, 2);
    assert_eq!(
        (&told[0]["type"], &told[1]["type"]),
        (&"metrics".into(), &"serving".into())
    );
    let of_server = told[0]["address"].as_str().unwrap();
    let source = told[1]["source"].as_str().unwrap();

    fs::create_dir(home.path("mnt")).unwrap();
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let mut mount = vec![
        "--json",
        "mount",
        source,
        "mnt",
        "--foreground",
        "--cache",
        "cache",
    ];
    mount.extend(ANY_PORT);
    let (_mount, told) = start(&home, &mount, 1);
    let of_mount = told[0]["metrics"].as_str().unwrap();
    fs::read(home.path("mnt/sub/deep/big")).unwrap();

    let (_device, of_device) = device(&home);
    let (_shared, of_shared) = shared_server();
    let (mut metrics, served) = read(&get(of_server));
    let (of_shared, _) = read(&get(&of_shared));
    let (of_mount, mounted) = read(&get(of_mount));
    let (of_device, _) = read(&get(&of_device));
    let (_engine, of_engine) = engine();
    let (of_engine, _) = read(&get(&of_engine));
    let others = of_mount.into_iter().chain(of_device).chain(of_shared);
    let others = others.chain(of_engine);
    for (name, metric) in others {
        if name != "bulla_build_info" {
            assert!(
                metrics.insert(name.clone(), metric).is_none(),
                "two of them tell {name}"
            );
        }
    }
    let documented = documented();
    for (name, metric) in &metrics {
        assert_eq!(
            documented.get(name),
            Some(metric),
            "docs/metrics.md of {name}"
        );
        assert_eq!(name.ends_with("_total"), metric.kind == "counter", "{name}");
    }
    for name in documented.keys() {
        assert!(
            metrics.contains_key(name),
            "docs/metrics.md has {name}, which no daemon serves"
        );
    }

    // The values agree with what happened.
    let of_volume = |name: &str| mounted[&format!("{name}{{volume=\"{volume}\"}}")];
    assert_eq!(of_volume("bulla_mount_version"), 1.0);
    assert!(of_volume("bulla_mount_blocks_fetched_total") > 0.0);
    assert!(of_volume("bulla_mount_memory_bytes") > 700_000.0);
    assert!(of_volume("bulla_mount_statement_left_seconds") > 6.0 * 86400.0);
    assert!(of_volume("bulla_mount_policy_left_seconds") > 1e18);
    assert!(served["bulla_serve_sent_bytes_total"] > 700_000.0);
    assert!(served["bulla_serve_requests_total{call=\"head\"}"] > 0.0);
    assert_eq!(
        served["bulla_serve_errors_total{reason=\"malformed\"}"],
        0.0
    );
}

#[test]
fn address_in_use_is_reported() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    fs::create_dir(home.path("mnt")).unwrap();
    for args in [
        &[
            "serve",
            "repo",
            "--listen",
            "127.0.0.1:0",
            "--metrics",
            &address,
        ][..],
        &["mount", &source, "mnt", "--metrics", &address],
    ] {
        let refused = home.run(args).ends(1);
        assert!(refused.err.contains(&address), "{}", refused.err);
        assert!(refused.err.contains("--metrics"), "{}", refused.err);
    }
    home.run(&["serve", "repo", "--metrics", "nowhere"]).ends(2);
    assert!(!mount_table().contains(&home.path("mnt").display().to_string()));
}

fn mount_table() -> String {
    let table = Command::new("cat")
        .arg("/proc/self/mountinfo")
        .output()
        .unwrap();
    String::from_utf8(table.stdout).unwrap()
}
