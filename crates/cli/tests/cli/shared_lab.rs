//! For the tests of shared volumes: a server and devices, each with a home of its own, all of them the real binary; and
//! the forking server of `sim`, which is this test binary started again.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::support::{Home, Ran};

/// Set in a process that plays the forking server: its arguments, with spaces between them.
const FORKING_SERVER: &str = "BULLA_TEST_FORKING_SERVER";

const FORKING_TEST: &str = "shared_lab::forking_server_of_other_tests";

/// This test binary started as the forking server.
#[test]
fn forking_server_of_other_tests() {
    if let Ok(args) = std::env::var(FORKING_SERVER) {
        let args = args.split_whitespace().map(OsString::from);
        sim::forking::main([OsString::from("forking-server")].into_iter().chain(args)).unwrap();
    }
}

/// A function of a shell that is the forking server.
pub fn forking_server_function() -> String {
    let binary = std::env::current_exe().unwrap();
    let run = format!("{} --exact {FORKING_TEST} --nocapture", binary.display());
    format!("forking-server() {{ exec env {FORKING_SERVER}=\"$*\" {run}; }}\n")
}

/// A process and what it prints, which somebody must read: a test harness ends when nobody does.
fn serving(command: &mut Command) -> Child {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut told = String::new();
    loop {
        let line = lines.next().and_then(Result::ok);
        let line = line.unwrap_or_else(|| panic!("the server says: {told}"));
        if line.contains("serving") {
            break;
        }
        told += &line;
    }
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    child
}

/// The machine of a server, and its process if it runs.
pub struct Orderer {
    pub home: Home,
    /// The host of its address.
    pub host: String,
    pub port: u16,
    process: Option<Child>,
    /// Where devices are told that it is, if not at its address.
    pub seen_at: Option<String>,
}

impl Orderer {
    /// Makes the key. The server will listen at this host.
    pub fn new(host: &str) -> (Orderer, String) {
        let home = Home::new();
        let made = home.run(&[
            "--json",
            "orderer",
            "new",
            "--out",
            "key",
            "--no-passphrase",
        ]);
        let key = made.ends(0).field("key").as_str().unwrap().to_owned();
        let orderer = Orderer {
            home,
            host: host.to_owned(),
            port: sim::port::own(),
            process: None,
            seen_at: None,
        };
        (orderer, key)
    }

    pub fn location(&self) -> String {
        let seen = self.seen_at.clone();
        format!("bulla://{}", seen.unwrap_or_else(|| self.address()))
    }

    /// The number of the process.
    pub fn process(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Starts the process with these flags, and waits until it listens.
    pub fn start_with(&mut self, flags: &[&str]) {
        self.start_as(flags, |command| command);
    }

    /// The same, with something done to the command.
    pub fn start_as(&mut self, flags: &[&str], how: impl Fn(&mut Command) -> &mut Command) {
        let address = self.address();
        let args = [
            "--json",
            "serve",
            "repo",
            "--orderer-key",
            "key",
            "--shared",
            &address,
        ];
        let mut command = self.home.command(&[&args, flags].concat());
        self.process = Some(serving(how(&mut command)));
    }

    /// Stops the process as an operator does.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.process.take() {
            let stop = format!("kill -TERM {}", child.id());
            let told = Command::new("sh").args(["-c", &stop]).status();
            assert!(told.unwrap().success());
            assert!(child.wait().unwrap().success());
        }
    }

    /// Stops the process, and starts the forking server with these arguments.
    pub fn turn_into_liar(&mut self, args: &[&str]) {
        self.stop();
        let address = self.address();
        let more = ["--orderer-key", "key", "--shared", &address];
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", FORKING_TEST, "--nocapture"])
            .env(FORKING_SERVER, [args, &more].concat().join(" "))
            .current_dir(self.home.path(""));
        self.process = Some(serving(&mut command));
    }

    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Orderer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A volume `notes` of the user ada, with one device.
pub fn founded(flags: &[&str]) -> (Orderer, Home) {
    founded_at("127.0.0.1", flags)
}

/// The same, with the server's host.
pub fn founded_at(host: &str, flags: &[&str]) -> (Orderer, Home) {
    let (mut orderer, key) = Orderer::new(host);
    let ada = found(&mut orderer, &key, flags, &[]);
    (orderer, ada)
}

/// The same, on the machine of a server that has this key. Returns the first device.
pub fn found(orderer: &mut Orderer, key: &str, flags: &[&str], serve_flags: &[&str]) -> Home {
    let ada = Home::new();
    ada.run(&["key", "new", "--out", "owner", "--no-passphrase"])
        .ends(0);
    let location = orderer.location();
    let args = [
        "share",
        "init",
        "notes",
        "--orderer",
        key,
        "--server",
        &location,
        "--owner-key",
        "owner",
        "--user",
        "ada",
        "--out",
        "genesis",
    ];
    ada.run(&[&args, flags].concat()).ends(0);
    let genesis = ada.path("genesis");
    let accept = ["--accept", genesis.to_str().unwrap()];
    orderer.start_with(&[&accept, serve_flags].concat());
    ada
}

/// A command that goes on, and what it prints.
pub struct Talk {
    pub child: Child,
    pub stdout: BufReader<ChildStdout>,
}

impl Talk {
    pub fn begin(command: &mut Command) -> Talk {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Talk { child, stdout }
    }

    /// The next line.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The value of a field of the next record.
    pub fn record(&mut self, kind: &str, key: &str) -> String {
        let line = self.line();
        let record: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if record["type"] != kind {
            let ran = self.end_after(line);
            panic!("no {kind}:\n{}\n{}", ran.out, ran.err);
        }
        record[key].as_str().unwrap().to_owned()
    }

    fn end_after(&mut self, mut out: String) -> Ran {
        self.stdout.read_to_string(&mut out).unwrap();
        let mut err = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut err).unwrap();
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        Ran { code, out, err }
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ran {
        self.end_after(String::new())
    }
}

/// An invitation on its way: both commands run, and the joiner shows its words.
pub struct Admission {
    pub inviting: Talk,
    pub joining: Talk,
    pub words: String,
}

impl Admission {
    pub fn begin(admin: &Home, joiner: &Home) -> Admission {
        Admission::begin_with(admin, joiner, &[])
    }

    /// The joiner's command has these flags.
    pub fn begin_with(admin: &Home, joiner: &Home, flags: &[&str]) -> Admission {
        let invite = ["--json", "share", "invite", "notes", "--wait", "60s"];
        let mut inviting = Talk::begin(&mut admin.command(&invite));
        let line = inviting.record("invitation", "line");
        let join = ["--json", "share", "join", "-", "--wait", "60s"];
        let mut command = joiner.command(&[&join, flags].concat());
        let mut joining = Talk::begin(command.stdin(Stdio::piped()));
        let mut stdin = joining.child.stdin.take().unwrap();
        stdin.write_all(line.as_bytes()).unwrap();
        drop(stdin);
        let words = joining.record("words", "words");
        Admission {
            inviting,
            joining,
            words,
        }
    }
}

/// A new machine that becomes a device of a user.
pub fn joined(admin: &Home, user: &str) -> Home {
    let home = Home::new();
    join(admin, user, &home);
    home
}

/// This machine becomes a device of a user.
pub fn join(admin: &Home, user: &str, home: &Home) {
    let admission = Admission::begin(admin, home);
    admission.inviting.end().ends(0);
    let words = &admission.words;
    admin
        .run(&["share", "device", "add", "notes", words, "--user", user])
        .ends(0);
    admission.joining.end().ends(0);
}
