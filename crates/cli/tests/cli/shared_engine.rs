//! One process of a user runs the engine of a volume, others use it: `share run`, commands that meet, processes that are
//! killed, homes with long paths, strangers, other versions. And beacons.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::shared_lab::{Orderer, Talk, founded, joined};
use crate::support::{Home, Ran, skipped, wait_until};

fn put(home: &Home, name: &str, content: &str) -> Ran {
    std::fs::write(home.path(name), content).unwrap();
    home.run(&["--json", "put", name, "notes"])
}

fn read(home: &Home, name: &str) -> String {
    home.run(&["cat", "notes", name]).ends(0).out
}

fn kind(ran: &Ran) -> String {
    ran.field("error")["kind"].as_str().unwrap().to_owned()
}

/// `share run`, which goes on.
pub struct Running(Option<Talk>);

impl Running {
    pub fn begin(home: &Home, flags: &[&str]) -> Running {
        let args = [&["--json", "share", "run", "notes"], flags].concat();
        let mut talk = Talk::begin(&mut home.command(&args));
        if flags.contains(&"--metrics") {
            talk.line();
        }
        assert_eq!(talk.record("running", "name"), "notes");
        Running(Some(talk))
    }

    pub fn id(&self) -> u32 {
        self.0.as_ref().unwrap().child.id()
    }

    /// SIGTERM.
    pub fn stop(mut self) -> Ran {
        let talk = self.0.take().unwrap();
        signal(talk.child.id(), "TERM");
        talk.end()
    }

    /// kill -9.
    pub fn kill(mut self) {
        let mut talk = self.0.take().unwrap();
        talk.child.kill().unwrap();
        talk.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut talk) = self.0.take() {
            let _ = talk.child.kill();
            let _ = talk.child.wait();
        }
    }
}

pub fn signal(process: u32, name: &str) {
    let kill = format!("kill -{name} {process}");
    let told = Command::new("sh").args(["-c", &kill]).status();
    assert!(told.unwrap().success());
}

/// The directory of the only shared volume of a home.
pub fn directory(home: &Home) -> PathBuf {
    let shared = home.path(".local/state/bulla/shared");
    let mut volumes = std::fs::read_dir(shared).unwrap();
    volumes.next().unwrap().unwrap().path()
}

/// Does something with a short name of a home's socket: addresses of sockets are short.
fn with_socket<T>(directory: &Path, work: impl FnOnce(&Path) -> T) -> T {
    let directory = std::fs::File::open(directory).unwrap();
    let short = format!("/proc/self/fd/{}/socket", directory.as_raw_fd());
    work(Path::new(&short))
}

fn connect(directory: &Path) -> UnixStream {
    with_socket(directory, |socket| UnixStream::connect(socket).unwrap())
}

/// The process that runs the engine for others, as `share status` says.
fn process(home: &Home) -> Option<u64> {
    let status = home.run(&["--json", "share", "status", "notes"]).ends(0);
    status.field("process").as_u64()
}

#[test]
fn commands_use_the_engine_of_a_process_that_runs() {
    let (_orderer, ada) = founded(&[]);
    assert_eq!(process(&ada), None);
    let running = Running::begin(&ada, &[]);
    assert_eq!(process(&ada), Some(u64::from(running.id())));
    put(&ada, "plan", "the ferry goes at nine\n").ends(0);
    assert_eq!(read(&ada, "plan"), "the ferry goes at nine\n");
    // Content that has blocks of its own.
    let long = "a line that is long\n".repeat(100_000);
    put(&ada, "long", &long).ends(0);
    assert_eq!(read(&ada, "long"), long);
    ada.run(&["mkdir", "notes", "trips"]).ends(0);
    ada.run(&["mv", "notes", "plan", "trips"]).ends(0);
    ada.run(&["rm", "notes", "long"]).ends(0);
    assert_eq!(
        ada.run(&["ls", "-R", "notes"]).ends(0).out,
        "trips\ntrips/plan\n"
    );
    let refused = ada.run(&["--json", "cat", "notes", "long"]).ends(10);
    assert_eq!(kind(&refused), "not-found");
    assert!(ada.run(&["log", "notes"]).ends(0).out.contains("trips"));
    ada.run(&["share", "compare", "notes"]).ends(0);
    // Another device works with this one while its engine runs.
    let laptop = joined(&ada, "ada");
    assert_eq!(read(&laptop, "trips/plan"), "the ferry goes at nine\n");
    let status = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(status.field("devices"), 2);
    running.stop().ends(0);
    assert!(!directory(&ada).join("socket").exists());
    assert_eq!(process(&ada), None);
    assert_eq!(read(&ada, "trips/plan"), "the ferry goes at nine\n");
}

#[test]
fn ten_commands_at_once_lose_nothing_with_and_without_a_running_engine() {
    let (_orderer, ada) = founded(&[]);
    for running in [None, Some(Running::begin(&ada, &[]))] {
        let round = if running.is_some() { "b" } else { "a" };
        std::thread::scope(|scope| {
            for number in 0..10 {
                let ada = &ada;
                let name = format!("{round}{number}");
                scope.spawn(move || put(ada, &name, &name).ends(0));
            }
        });
        for number in 0..10 {
            let name = format!("{round}{number}");
            assert_eq!(read(&ada, &name), name);
        }
    }
}

/// Puts files one after the other until it is told to stop. Returns names and exit codes.
fn puts(home: &Home, who: usize, stop: &AtomicBool) -> Vec<(String, Ran)> {
    let mut done = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("file-{who}-{number}");
        let ran = put(home, &name, &name);
        done.push((name, ran));
    }
    done
}

#[test]
fn killed_engine_is_taken_over_and_what_was_acknowledged_is_there_once() {
    let (_orderer, ada) = founded(&[]);
    let stop = AtomicBool::new(false);
    let done: Vec<(String, Ran)> = std::thread::scope(|scope| {
        let (ada, stop) = (&ada, &stop);
        let writers: Vec<_> = (0..4)
            .map(|who| scope.spawn(move || puts(ada, who, stop)))
            .collect();
        for _ in 0..5 {
            let running = Running::begin(ada, &[]);
            std::thread::sleep(Duration::from_millis(400));
            running.kill();
            // Between two runs one of the commands has the engine.
            std::thread::sleep(Duration::from_millis(200));
        }
        stop.store(true, Ordering::Relaxed);
        writers
            .into_iter()
            .flat_map(|writer| writer.join().unwrap())
            .collect()
    });
    assert!(done.len() > 20, "{}", done.len());
    let listed = ada.run(&["ls", "notes"]).ends(0).out;
    let listed: Vec<&str> = listed.lines().collect();
    let log = ada.run(&["--json", "log", "notes"]).ends(0);
    let entries = log
        .out
        .lines()
        .filter(|line| line.contains("\"type\":\"entry\""));
    let entries = entries.collect::<Vec<_>>().join("\n");
    for (name, ran) in &done {
        match ran.code {
            0 => assert!(listed.contains(&name.as_str()), "{name} is lost"),
            30 => {
                assert_eq!(kind(ran), "unavailable", "{}", ran.err);
                assert!(ran.err.contains("not known"), "{}", ran.err);
            }
            code => panic!("{name}: {code}\n{}", ran.err),
        }
        // Nothing was sent a second time.
        let quoted = format!("\"{name}\"");
        assert!(
            entries.matches(&quoted).count() <= 1,
            "{name} was put twice"
        );
    }
}

#[test]
fn process_that_ends_hands_over_to_those_that_wait() {
    let (_orderer, ada) = founded(&[]);
    let first = Running::begin(&ada, &[]);
    let second = Running::begin(&ada, &[]);
    let third = Running::begin(&ada, &[]);
    assert_eq!(process(&ada), Some(u64::from(first.id())));
    first.stop().ends(0);
    put(&ada, "plan", "one\n").ends(0);
    let next = process(&ada).unwrap();
    assert!([second.id(), third.id()].map(u64::from).contains(&next));
    let (gone, last) = match next == u64::from(second.id()) {
        true => (second, third),
        false => (third, second),
    };
    gone.kill();
    assert_eq!(read(&ada, "plan"), "one\n");
    assert_eq!(process(&ada), Some(u64::from(last.id())));
    last.stop().ends(0);
}

#[test]
fn stale_socket_is_replaced_and_a_stopped_engine_holds_nobody_up_for_ever() {
    let (_orderer, ada) = founded(&[]);
    let running = Running::begin(&ada, &[]);
    let process = running.id();
    let socket = directory(&ada).join("socket");
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    signal(process, "STOP");
    let began = Instant::now();
    let late = ada.run(&["--json", "ls", "notes", "--deadline", "2s"]);
    assert!(matches!(late.code, 11 | 30), "{}\n{}", late.code, late.err);
    assert!(began.elapsed() < Duration::from_secs(40));
    signal(process, "CONT");
    running.kill();
    assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
    put(&ada, "plan", "one\n").ends(0);
    assert!(!socket.exists());
    // Something else that lies there.
    std::fs::write(&socket, "no socket").unwrap();
    assert_eq!(read(&ada, "plan"), "one\n");
    assert!(!socket.exists());
}

#[test]
fn home_with_a_long_path_has_a_socket_too() {
    let (_orderer, ada) = founded(&[]);
    let long = "a-directory-with-a-long-name/".repeat(8);
    let state = ada.path(&long);
    std::fs::create_dir_all(state.parent().unwrap()).unwrap();
    std::fs::rename(ada.path(".local/state/bulla"), &state).unwrap();
    let command = |args: &[&str]| {
        let mut command = ada.command(args);
        command.env("BULLA_STATE_DIR", &state);
        command
    };
    let mut talk = Talk::begin(&mut command(&["--json", "share", "run", "notes"]));
    assert_eq!(talk.record("running", "name"), "notes");
    let run = |args: &[&str]| Ran::of(command(args).output().unwrap()).ends(0);
    let status = run(&["--json", "share", "status", "notes"]);
    assert_eq!(
        status.field("process").as_u64(),
        Some(talk.child.id().into())
    );
    run(&["mkdir", "notes", "trips"]);
    assert_eq!(run(&["ls", "notes"]).out, "trips\n");
    signal(talk.child.id(), "TERM");
    talk.end().ends(0);
}

/// Another program than bulla at the socket: what it sends, and whether it gets an answer after the hello.
fn stranger(directory: &Path, send: &[u8]) -> bool {
    let mut stream = connect(directory);
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let _ = stream.write_all(send);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut told = Vec::new();
    let _ = stream.read_to_end(&mut told);
    told.len() > 44
}

#[test]
fn nonsense_on_the_socket_ends_that_connection_only() {
    let (_orderer, ada) = founded(&[]);
    let running = Running::begin(&ada, &[]);
    let directory = directory(&ada);
    assert!(!stranger(
        &directory,
        b"GET / HTTP/1.1\r\nHost: nobody-in-particular\r\n\r\n"
    ));
    assert!(!stranger(&directory, b""));
    let mut hello = b"bulla-home\x04\x00test".to_vec();
    hello.resize(44, 0);
    for frame in [
        &b"\xff\xff\xff\xff"[..],
        b"\x02\0\0\0\xff\0",
        b"\x05\0\0\0\x01",
        b"\x01\0\0\0\x01",
    ] {
        assert!(stranger(&directory, &[&hello, frame].concat()));
    }
    // Programs that say nothing, more than are admitted.
    let silent: Vec<UnixStream> = (0..40).map(|_| connect(&directory)).collect();
    // They are sent away when they have said nothing for some seconds.
    put(&ada, "plan", "one\n").ends(0);
    assert_eq!(read(&ada, "plan"), "one\n");
    drop(silent);
    running.stop().ends(0);
}

#[test]
fn another_version_is_named_with_a_hint() {
    let (_orderer, ada) = founded(&[]);
    let listener = with_socket(&directory(&ada), |socket| {
        UnixListener::bind(socket).unwrap()
    });
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = b"bulla-home\x05\x009.8.7".to_vec();
        hello.resize(44, 0);
        stream.write_all(&hello).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let refused = ada.run(&["--json", "ls", "notes"]).ends(11);
    assert!(refused.err.contains("9.8.7"), "{}", refused.err);
    assert!(
        refused.err.contains(&std::process::id().to_string()),
        "{}",
        refused.err
    );
    other.join().unwrap();
    // Its process has ended.
    ada.run(&["ls", "notes"]).ends(0);
}

const FOREIGN: &str = "BULLA_TEST_FOREIGN_SOCKET";

/// This test binary started as another user.
#[test]
fn foreign_program_of_another_test() {
    if let Ok(directory) = std::env::var(FOREIGN) {
        let mut stream = connect(Path::new(&directory));
        let mut told = Vec::new();
        let read = stream.read_to_end(&mut told);
        std::process::exit(match (read, told.len()) {
            (_, 0) => 40,
            _ => 41,
        });
    }
}

#[test]
fn another_user_gets_nothing_even_where_modes_let_it_in() {
    if !rustix::process::geteuid().is_root() {
        return skipped("another user at the socket", "the tests do not run as root");
    }
    let (_orderer, ada) = founded(&[]);
    let running = Running::begin(&ada, &[]);
    let socket = directory(&ada).join("socket");
    for path in socket
        .ancestors()
        .take_while(|path| path.starts_with(ada.path("")))
    {
        let mode = if path == socket { 0o666 } else { 0o755 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let binary = ada.path("foreign");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    let asked = Command::new(&binary)
        .args([
            "--exact",
            "shared_engine::foreign_program_of_another_test",
            "--nocapture",
        ])
        .env(FOREIGN, directory(&ada))
        .uid(65534)
        .output()
        .unwrap();
    assert_eq!(
        asked.status.code(),
        Some(40),
        "{}",
        String::from_utf8_lossy(&asked.stderr)
    );
    put(&ada, "plan", "one\n").ends(0);
    running.stop().ends(0);
}

#[test]
fn convicted_home_says_so_through_the_socket() {
    let (mut orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    put(&ada, "before", "both know this\n").ends(0);
    assert_eq!(read(&laptop, "before"), "both know this\n");
    let running = Running::begin(&ada, &[]);
    orderer.turn_into_liar(&["repo", "other"]);
    put(&ada, "plan", "nine\n").ends(0);
    put(&laptop, "plan", "ten\n").ends(0);
    for name in ["x", "y", "z"] {
        put(&ada, name, "more\n").ends(0);
    }
    let text = laptop.run(&["share", "compare", "notes"]).ends(0).out;
    std::fs::write(ada.path("seen"), text).unwrap();
    let told = ada
        .run(&["--json", "share", "compare", "notes", "seen"])
        .ends(22);
    assert!(Path::new(told.field("evidence").as_str().unwrap()).exists());
    let ended = running.0.as_ref().map(|talk| talk.child.id()).unwrap();
    // The process ends: all its volumes have stopped.
    wait_until("the process ends", || {
        !Path::new(&format!("/proc/{ended}/fd/0")).exists()
    });
    let told = ada.run(&["--json", "put", "plan", "notes"]).ends(22);
    assert_eq!(kind(&told), "fork");
    let mut running = running;
    let ran = running.0.take().unwrap().end().ends(22);
    assert!(ran.err.contains("has lied"), "{}", ran.err);
}

fn device_of(home: &Home) -> String {
    let listed = home
        .run(&["--json", "share", "device", "list", "notes"])
        .ends(0);
    let devices = listed.records("device");
    let own = devices
        .iter()
        .find(|device| device["this"] == true)
        .unwrap();
    own["device"].to_string()
}

/// ada, whose engine runs and asks for a beacon; the beacon.
fn with_beacon(within: &str) -> (Orderer, Home, Home, Running, Running) {
    let (orderer, ada) = founded(&[]);
    let tower = joined(&ada, "ada");
    let device = device_of(&tower);
    let flags = ["--beacon", "300ms", "--write", "beacon"];
    let beacon = Running::begin(&tower, &flags);
    let running = Running::begin(&ada, &[]);
    wait_until("the beacon writes", || {
        ada.run(&["cat", "notes", "beacon"]).code == 0
    });
    ada.run(&["share", "beacon", "notes", &device, "--within", within])
        .ends(0);
    (orderer, ada, tower, running, beacon)
}

#[test]
fn beacon_that_is_silent_stops_reads_and_writes_until_it_writes_again() {
    let (_orderer, ada, tower, running, beacon) = with_beacon("5s");
    put(&ada, "plan", "one\n").ends(0);
    let status = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(status.records("beacon")[0]["overdue"], false);
    beacon.stop().ends(0);
    wait_until("the beacon is missed", || {
        ada.run(&["ls", "notes"]).code == 30
    });
    let refused = ada.run(&["--json", "cat", "notes", "plan"]).ends(30);
    assert_eq!(kind(&refused), "unattested");
    assert!(refused.err.contains("share compare"), "{}", refused.err);
    put(&ada, "plan", "two\n").ends(30);
    let status = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(status.records("beacon")[0]["overdue"], true);
    let beacon = Running::begin(&tower, &["--beacon", "300ms", "--write", "beacon"]);
    wait_until("the beacon is back", || ada.run(&["ls", "notes"]).code == 0);
    assert_eq!(read(&ada, "plan"), "one\n");
    beacon.stop().ends(0);
    wait_until("the beacon is missed", || {
        ada.run(&["ls", "notes"]).code == 30
    });
    let device = device_of(&tower);
    ada.run(&["share", "beacon", "notes", &device, "--none"])
        .ends(0);
    assert_eq!(read(&ada, "plan"), "one\n");
    running.stop().ends(0);
}

#[test]
fn fork_is_noticed_by_who_has_a_beacon_on_the_other_branch() {
    let (mut orderer, ada, tower, running, beacon) = with_beacon("5s");
    orderer.turn_into_liar(&["repo", "other"]);
    let began = Instant::now();
    // Each goes on alone for a while.
    wait_until("ada misses the beacon", || {
        ada.run(&["ls", "notes"]).code == 30
    });
    eprintln!("noticed after {:?}", began.elapsed());
    let refused = put(&ada, "plan", "nine\n").ends(30);
    assert_eq!(kind(&refused), "unattested");
    // The command that its hint names finds the fork.
    running.kill();
    let text = ada.run(&["share", "compare", "notes"]).ends(0).out;
    std::fs::write(tower.path("seen"), text).unwrap();
    let size = |home: &Home| {
        let status = home.run(&["--json", "share", "status", "notes"]).ends(0);
        status.field("size").as_u64().unwrap()
    };
    let seen = size(&ada);
    wait_until("the other branch is longer", || size(&tower) > seen + 20);
    let told = tower.run(&["--json", "share", "compare", "notes", "seen"]);
    assert_eq!(told.code, 22, "{}{}", told.out, told.err);
    drop(beacon);
}

#[test]
fn beacon_needs_another_device_and_a_file() {
    let (_orderer, ada) = founded(&[]);
    let own = device_of(&ada);
    ada.run(&["share", "beacon", "notes", &own, "--within", "1m"])
        .ends(2);
    ada.run(&["share", "beacon", "notes", "7", "--within", "1m"])
        .ends(10);
    ada.run(&["share", "run", "notes", "--beacon", "1m"])
        .ends(2);
    let ran = ada.run(&["share", "run", "notes", "--beacon", "1m", "--write", "/"]);
    ran.ends(2);
    ada.run(&["share", "run", "nobody"]).ends(10);
}

/// A refusal that a person must see is a warning of the process that stays.
#[test]
fn process_that_stays_says_that_its_device_was_removed() {
    let (_orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    let running = Running::begin(&laptop, &[]);
    ada.run(&["share", "device", "remove", "notes", "1"])
        .ends(0);
    let refused = || laptop.run(&["ls", "notes", "--deadline", "1s"]).code == 23;
    wait_until("the server refuses", refused);
    std::thread::sleep(Duration::from_millis(2500));
    let told = running.stop();
    assert!(told.err.contains("no member of the volume"), "{}", told.err);
}

#[test]
fn beacon_that_was_removed_from_the_volume_can_be_given_up() {
    let (_orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    put(&laptop, "a", "here\n").ends(0);
    let set = ada.run(&["--json", "share", "beacon", "notes", "1", "--within", "1h"]);
    let key = set.ends(0).field("key").as_str().unwrap().to_owned();
    ada.run(&["share", "device", "remove", "notes", "1"])
        .ends(0);
    let number = ada.run(&["share", "beacon", "notes", "1", "--none"]);
    let number = number.ends(10);
    assert!(number.err.contains("named by its key"), "{}", number.err);
    let given_up = ada.run(&["--json", "share", "beacon", "notes", &key, "--none"]);
    assert!(given_up.ends(0).field("device").is_null());
    let status = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(status.field("beacons"), 0);
    ada.run(&["share", "beacon", "notes", &key, "--none"])
        .ends(10);
}
