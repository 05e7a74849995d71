//! For the tests of shared volumes: a server and devices, each with a home of its own, all of them the real binary.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::support::{Home, Ran};

/// The machine of a server, and its process if it runs.
pub struct Orderer {
    pub home: Home,
    pub port: u16,
    process: Option<Child>,
}

impl Orderer {
    /// Makes the key.
    pub fn new() -> (Orderer, String) {
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
            port: sim::port::own(),
            process: None,
        };
        (orderer, key)
    }

    pub fn location(&self) -> String {
        format!("bulla://127.0.0.1:{}", self.port)
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts the process with these flags, and waits until it listens.
    pub fn start_with(&mut self, flags: &[&str]) {
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
        let mut child = self
            .home
            .command(&[&args, flags].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert!(line.contains("\"serving\""), "the server says: {line}");
        self.process = Some(child);
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
    let (mut orderer, key) = Orderer::new();
    let ada = Home::new();
    ada.run(&["key", "new", "--out", "owner", "--no-passphrase"])
        .ends(0);
    let location = orderer.location();
    let args = [
        "share",
        "init",
        "notes",
        "--orderer",
        &key,
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
    orderer.start_with(&["--accept", genesis.to_str().unwrap()]);
    (orderer, ada)
}

/// A command that goes on, and what it prints.
pub struct Talk {
    pub child: Child,
    stdout: BufReader<ChildStdout>,
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
        let invite = ["--json", "share", "invite", "notes", "--wait", "60s"];
        let mut inviting = Talk::begin(&mut admin.command(&invite));
        let line = inviting.record("invitation", "line");
        let mut command = joiner.command(&["--json", "share", "join", "-", "--wait", "60s"]);
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
    let admission = Admission::begin(admin, &home);
    admission.inviting.end().ends(0);
    let words = &admission.words;
    admin
        .run(&["share", "device", "add", "notes", words, "--user", user])
        .ends(0);
    admission.joining.end().ends(0);
    home
}
