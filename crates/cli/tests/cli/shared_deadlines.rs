//! Every command that speaks to the server of a shared volume ends within its deadline, whatever the server or the
//! connection does: a server that stands still, and a relay that takes or gives nothing more after some bytes. With an
//! engine of its own, and with the engine of another process.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::shared_engine::{Running, signal};
use crate::shared_lab::{Admission, Orderer, Talk, found, founded, joined};
use crate::support::{Home, Ran, noise};

const DEADLINE: &str = "2s";
/// A command that keeps its deadline has ended long before; what this looks for lasts for ever, or 30 s.
const ENDS_WITHIN: Duration = Duration::from_secs(22);

/// A command that was begun, with its name.
struct Begun {
    name: String,
    child: Child,
    began: Instant,
}

impl Begun {
    fn begin(home: &Home, args: &[&str]) -> Begun {
        let mut command = home.command(args);
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Begun {
            name: args.join(" "),
            child,
            began: Instant::now(),
        }
    }

    /// Its end. One that does not end is killed, and the test fails.
    #[track_caller]
    fn end(mut self) -> Ran {
        while self.child.try_wait().unwrap().is_none() {
            if self.began.elapsed() > ENDS_WITHIN {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                panic!("`{}` did not end within its deadline", self.name);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut err = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut err).unwrap();
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        let out = String::new();
        Ran { code, out, err }
    }

    /// Its end, which must have this code, and a hint when it fails.
    #[track_caller]
    fn ends(self, code: i32) {
        self.ends_with(&[code]);
    }

    /// The same with one of these codes.
    #[track_caller]
    fn ends_with(self, codes: &[i32]) {
        let name = self.name.clone();
        let ran = self.end();
        assert!(!ran.err.contains("has stopped"), "{name}:\n{}", ran.err);
        assert!(
            codes.contains(&ran.code),
            "{name}: {}\n{}",
            ran.code,
            ran.err
        );
        let code = ran.code;
        ran.ends(code);
    }
}

/// How many bytes a relay still passes on.
struct Gates {
    up: AtomicI64,
    down: AtomicI64,
    /// Nothing comes down any more once so many bytes went up.
    mute: AtomicI64,
    ended: AtomicBool,
}

/// Where a relay stops.
#[derive(Clone, Copy)]
enum Stops {
    Nowhere,
    /// It takes nothing more from clients after so many bytes.
    Up(i64),
    /// It takes nothing more from the server.
    Down(i64),
    /// It takes everything from clients, and gives them nothing more once it has taken so much.
    Mute(i64),
}

/// Passes bytes on, and from some byte on nothing.
struct Relay {
    port: u16,
    gates: Arc<Gates>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(port: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gates = Gates {
            up: AtomicI64::new(i64::MAX),
            down: AtomicI64::new(i64::MAX),
            mute: AtomicI64::new(i64::MAX),
            ended: AtomicBool::new(false),
        };
        let relay = Relay {
            port: listener.local_addr().unwrap().port(),
            gates: Arc::new(gates),
            open: Arc::default(),
        };
        let (gates, open) = (Arc::clone(&relay.gates), Arc::clone(&relay.open));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if gates.ended.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                for (from, to, is_up) in [(&client, &server, true), (&server, &client, false)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    open.lock().unwrap().push(from.try_clone().unwrap());
                    let gates = Arc::clone(&gates);
                    std::thread::spawn(move || pass(from, to, is_up, &gates));
                }
            }
        });
        relay
    }

    fn stop(&self, stops: Stops) {
        let (mut up, mut down, mut mute) = (i64::MAX, i64::MAX, i64::MAX);
        match stops {
            Stops::Nowhere => {}
            Stops::Up(bytes) => up = bytes,
            Stops::Down(bytes) => down = bytes,
            Stops::Mute(bytes) => mute = bytes,
        }
        self.gates.up.store(up, Ordering::Relaxed);
        self.gates.down.store(down, Ordering::Relaxed);
        self.gates.mute.store(mute, Ordering::Relaxed);
    }

    /// Passes everything on again, over new connections.
    fn heal(&self) {
        self.stop(Stops::Nowhere);
        for stream in self.open.lock().unwrap().drain(..) {
            // It may be closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.gates.ended.store(true, Ordering::Relaxed);
        self.heal();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Passes one direction on, as long as its gate is open.
fn pass(mut from: TcpStream, mut to: TcpStream, is_up: bool, gates: &Gates) {
    let mut buffer = [0; 4096];
    while !gates.ended.load(Ordering::Relaxed) {
        let is_open = match is_up {
            true => gates.up.load(Ordering::Relaxed) > 0,
            false => [&gates.down, &gates.mute]
                .iter()
                .all(|gate| gate.load(Ordering::Relaxed) > 0),
        };
        if !is_open {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        let read = match from.read(&mut buffer) {
            Ok(read) if read > 0 => read,
            _ => break,
        };
        let count = read as i64;
        let gates = match is_up {
            true => [Some(&gates.up), Some(&gates.mute)],
            false => [Some(&gates.down), None],
        };
        for gate in gates.into_iter().flatten() {
            gate.fetch_sub(count, Ordering::Relaxed);
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// What the commands of these tests work on.
fn fill(home: &Home) {
    fs::write(home.path("small"), "small\n").unwrap();
    fs::write(home.path("big"), noise(1, 6 << 20)).unwrap();
    fs::create_dir(home.path("tree")).unwrap();
    for at in 0..20u64 {
        fs::write(home.path(&format!("tree/{at}")), noise(at, 200_000)).unwrap();
    }
    home.run(&["put", "small", "big", "notes"]).ends(0);
    home.run(&["mkdir", "notes", "dir"]).ends(0);
    let seen = home.run(&["share", "compare", "notes"]).ends(0).out;
    fs::write(home.path("seen"), seen).unwrap();
    home.run(&["key", "new", "--out", "published", "--no-passphrase"])
        .ends(0);
}

/// The commands that the server must answer.
const ASKING: [&[&str]; 19] = [
    &["log", "notes"],
    &["put", "big", "notes", "new"],
    &["put", "small", "notes", "new"],
    &["put", "-r", "tree", "notes"],
    &["cat", "notes", "big"],
    &["ls", "notes"],
    &["ls", "-R", "notes"],
    &["stat", "notes", "small"],
    &["rm", "notes", "small"],
    &["rm", "-r", "notes", "dir"],
    &["mv", "notes", "small", "other"],
    &["mkdir", "notes", "more"],
    &["extract", "notes", "out"],
    &["verify", "notes"],
    &["share", "export", "notes", "repo", "--key", "published"],
    &["share", "user", "add", "notes", "bob"],
    &["share", "group", "add", "notes", "team"],
    &["share", "device", "list", "notes"],
    &["share", "invite", "notes", "--wait", "2s"],
];

/// Commands that do without the server's answer.
const KNOWING: [&[&str]; 4] = [
    &["share", "status", "notes"],
    &["share", "compare", "notes"],
    &["share", "compare", "notes", "seen"],
    &["share", "follow", "notes"],
];

fn with_deadline<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [args, &["--deadline", DEADLINE]].concat()
}

/// Runs all of them at the same time, and then those that do without the server alone.
fn all_end(home: &Home) {
    let begin = |args: &&[&str]| Begun::begin(home, &with_deadline(args));
    let asking: Vec<Begun> = ASKING.iter().map(begin).collect();
    let knowing: Vec<Begun> = KNOWING.iter().map(begin).collect();
    for begun in asking {
        begun.ends(30);
    }
    for begun in knowing {
        // Beside so many others it may wait for the engine until its deadline.
        begun.ends_with(&[0, 30]);
    }
    for args in KNOWING.iter().filter(|args| !args.contains(&"follow")) {
        begin(args).ends(0);
    }
}

#[test]
fn commands_end_within_their_deadline_while_the_server_stands_still() {
    let (orderer, ada) = founded(&[]);
    fill(&ada);
    let invite = ["--json", "share", "invite", "notes", "--wait", "60s"];
    let mut inviting = Talk::begin(&mut ada.command(&invite));
    let line = inviting.record("invitation", "line");
    inviting.child.kill().unwrap();
    inviting.child.wait().unwrap();
    let asking = Home::new();
    let mut admission = Admission::begin(&ada, &asking);
    let words = admission.words.clone();
    admission.inviting.end().ends(0);
    signal(orderer.process(), "STOP");
    // A device that is invited, and one that has asked.
    let new = Home::new();
    let join = Begun::begin(&new, &with_deadline(&["share", "join", &line]));
    let add = ["share", "device", "add", "notes", &words, "--user", "ada"];
    let add = Begun::begin(&ada, &with_deadline(&add));
    join.ends(30);
    add.ends(30);
    admission.joining.child.kill().unwrap();
    admission.joining.child.wait().unwrap();
    // One of them runs the engine at a time.
    all_end(&ada);
    signal(orderer.process(), "CONT");
    ada.run(&["put", "big", "notes", "new"]).ends(0);
}

#[test]
fn commands_end_within_their_deadline_when_another_process_runs_the_engine() {
    let (orderer, ada) = founded(&[]);
    fill(&ada);
    let running = Running::begin(&ada, &[]);
    ada.run(&["ls", "notes"]).ends(0);
    signal(orderer.process(), "STOP");
    all_end(&ada);
    signal(orderer.process(), "CONT");
    ada.run(&["ls", "notes"]).ends(0);
    // The process with the engine stands still.
    signal(running.id(), "STOP");
    let put = Begun::begin(&ada, &with_deadline(&["put", "big", "notes", "new"]));
    let list = Begun::begin(&ada, &with_deadline(&["ls", "notes"]));
    put.ends(11);
    list.ends(11);
    signal(running.id(), "CONT");
    running.kill();
    ada.run(&["ls", "notes"]).ends(0);
}

/// A device whose connection goes through a relay.
fn behind_a_relay() -> (Orderer, Relay, Home) {
    let (mut orderer, key) = Orderer::new("127.0.0.1");
    let relay = Relay::to(orderer.port);
    orderer.seen_at = Some(format!("127.0.0.1:{}", relay.port));
    let ada = found(&mut orderer, &key, &[], &[]);
    fill(&ada);
    (orderer, relay, ada)
}

#[test]
fn commands_end_within_their_deadline_when_the_connection_stands_still_in_the_middle() {
    let (_orderer, relay, ada) = behind_a_relay();
    let begin = |args: &[&str]| Begun::begin(&ada, &[args, &["--deadline", "1s"]].concat());
    let put = |name: &str| begin(&["put", name, "notes", "new"]);
    let tree = || begin(&["put", "-r", "tree", "notes", "new"]);
    let cat = || begin(&["cat", "notes", "big"]);
    let extract = || begin(&["extract", "notes", "out"]);
    type Command<'a> = &'a dyn Fn() -> Begun;
    let cases: [(&str, Command<'_>, Stops); 8] = [
        ("nothing is taken", &|| put("big"), Stops::Up(1)),
        ("entering", &|| put("big"), Stops::Up(600)),
        ("the first blocks", &|| put("big"), Stops::Up(300_000)),
        ("later blocks", &tree, Stops::Up(2_500_000)),
        ("no acknowledgement", &|| put("big"), Stops::Mute(200_000)),
        ("no later one", &tree, Stops::Mute(2_500_000)),
        ("blocks that are read", &cat, Stops::Down(1_000_000)),
        (
            "blocks that are extracted",
            &extract,
            Stops::Down(1_000_000),
        ),
    ];
    for is_guest in [false, true] {
        let running = is_guest.then(|| Running::begin(&ada, &[]));
        let every = match std::env::var_os("BULLA_LONG") {
            None if is_guest => 2,
            _ => 1,
        };
        for (what, command, stops) in cases.iter().step_by(every) {
            relay.heal();
            ada.run(&["ls", "notes"]).ends(0);
            relay.stop(*stops);
            let begun = command();
            let ran = begun.end();
            assert!(!ran.err.contains("has stopped"), "{what}:\n{}", ran.err);
            assert_eq!(ran.code, 30, "{what}, guest {is_guest}:\n{}", ran.err);
            assert!(ran.err.contains("hint: "), "{what}:\n{}", ran.err);
            let _ = fs::remove_dir_all(ada.path("out"));
        }
        relay.heal();
        ada.run(&["put", "big", "notes", "new"]).ends(0);
        drop(running);
    }
}

#[test]
fn killed_put_leaves_nothing_that_stops_the_next_command() {
    let (orderer, ada) = founded(&[]);
    fill(&ada);
    for pause in [0, 100, 300, 600] {
        let mut put = Begun::begin(&ada, &["put", "-r", "tree", "big", "notes"]);
        std::thread::sleep(Duration::from_millis(pause / 2));
        signal(orderer.process(), "STOP");
        std::thread::sleep(Duration::from_millis(pause));
        put.child.kill().unwrap();
        put.child.wait().unwrap();
        Begun::begin(&ada, &with_deadline(&["ls", "notes"])).ends(30);
        signal(orderer.process(), "CONT");
        let ran = ada.run(&["ls", "notes", "-v"]).ends(0);
        assert!(!ran.err.contains("has stopped"), "{}", ran.err);
    }
    ada.run(&["put", "-r", "tree", "big", "notes"]).ends(0);
    // The end of a program cuts a step of its engine off now and then, which is no failure of the engine.
    signal(orderer.process(), "STOP");
    for _ in 0..6 {
        let begin = |_| Begun::begin(&ada, &["ls", "notes", "--deadline", "50ms"]);
        let begun: Vec<Begun> = (0..8).map(begin).collect();
        for begun in begun {
            let ran = begun.end();
            assert!(!ran.err.contains("has stopped"), "{}", ran.err);
        }
    }
}

#[test]
fn removed_device_is_told_so_at_once_also_by_an_engine_that_runs() {
    let (_orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    let running = Running::begin(&laptop, &[]);
    laptop.run(&["ls", "notes"]).ends(0);
    ada.run(&["share", "device", "remove", "notes", "1"])
        .ends(0);
    // The first may be asked before the server has told the engine.
    fs::write(laptop.path("small"), "small\n").unwrap();
    for args in [&["ls", "notes"][..], &["put", "small", "notes"]] {
        Begun::begin(&laptop, args).ends(23);
    }
    drop(running);
}
