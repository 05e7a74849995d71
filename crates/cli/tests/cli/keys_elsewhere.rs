//! Keys that a program or an ssh-agent signs with: they stand wherever a key file stands, and a signer that lies, hangs or
//! dies leaves everything as it was. Needs openssl, and OpenSSH's agent.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::{Home, Ran, skipped, wait_until};

/// A program of this machine that signs with the Ed25519 key in `NAME.pem`, and may be told to do something else.
struct Token {
    home: Home,
}

impl Token {
    /// `None` without openssl.
    fn new() -> Option<Token> {
        let home = Home::new();
        let mut openssl = Command::new("openssl");
        openssl.args(["genpkey", "-algorithm", "ed25519", "-out", "token.pem"]);
        let made = openssl.current_dir(home.path("")).status();
        if !made.is_ok_and(|status| status.success()) {
            skipped("a key with a program", "no openssl");
            return None;
        }
        let mut openssl = Command::new("openssl");
        openssl.args(["pkey", "-in", "token.pem", "-pubout", "-out", "token.pub"]);
        assert!(
            openssl
                .current_dir(home.path(""))
                .status()
                .unwrap()
                .success()
        );
        let token = Token { home };
        token.does(SIGNS);
        std::fs::create_dir(token.home.path("tree")).unwrap();
        std::fs::write(token.home.path("tree/a"), "hello\n").unwrap();
        Some(token)
    }

    /// What the program does from now on, as a script of the shell.
    fn does(&self, script: &str) {
        let home = self.home.path("");
        let text = format!("cd {}\n{script}\n", home.display());
        std::fs::write(self.home.path("program"), text).unwrap();
    }

    /// Makes the file `key` that refers to the program.
    fn refer(&self, more: &[&str]) -> Ran {
        let program = self.home.path("program");
        let program = program.to_str().unwrap();
        let begin = ["--json", "key", "refer", "token.pub", "--out", "key"];
        self.home
            .run(&[&begin[..], more, &["--", "sh", program]].concat())
    }

    fn head(&self) -> Option<Vec<u8>> {
        std::fs::read(self.home.path("repo/head")).ok()
    }
}

const SIGNS: &str = "openssl pkeyutl -sign -rawin -inkey token.pem -in /dev/stdin";

#[test]
fn program_signs_wherever_a_key_file_does() {
    let Some(token) = Token::new() else { return };
    let home = &token.home;
    let key = token.refer(&[]).ends(0).field("key");
    let key = key.as_str().unwrap();
    let shown = home.run(&["--json", "key", "show", "key"]).ends(0);
    assert_eq!(shown.field("by"), "command");
    assert_eq!(shown.field("command")[0], "sh");
    assert_eq!(shown.field("within_s"), 300);
    let listed = home.run(&["key", "list", "."]).ends(0);
    assert!(listed.out.contains(key) && listed.out.contains(" command "));

    let volume = home.publish().ends(0).field("volume");
    let volume = volume.as_str().unwrap();
    let source = home.source(volume, "repo");
    home.run(&["renew", "repo", "--key", "key"]).ends(0);
    let unsigned = ["publish", "tree", "repo", "--unsigned", "--out", "r"];
    home.run(&unsigned).ends(0);
    home.run(&["--yes", "sign", "r", "--key", "key", "--out", "s"])
        .ends(0);
    let installed = home.run(&["--json", "publish", "--install", "s", "repo"]);
    assert_eq!(installed.ends(0).field("version"), 3);
    home.run(&["policy", "new", "repo", "--out", "p"]).ends(0);
    let policy = ["--yes", "policy", "sign", "p", "--key", "key", "--out", "q"];
    home.run(&policy).ends(0);
    home.run(&["policy", "install", "q", "repo"]).ends(0);
    let read = home.run(&["cat", &source, "a"]).ends(0);
    assert_eq!(read.out, "hello\n");
}

#[test]
fn nothing_is_published_by_a_program_that_does_not_sign() {
    let Some(token) = Token::new() else { return };
    let home = &token.home;
    token.refer(&["--within", "5s"]).ends(0);
    // The second half, after a version: it is not replaced.
    for version in [1, 2] {
        let before = token.head();
        for (script, says) in [
            ("head -c 64 /dev/zero", "wrong signature"),
            // A signature over another message.
            (
                "echo other >other; openssl pkeyutl -sign -rawin -inkey token.pem -in other",
                "wrong signature",
            ),
            ("echo no", "3 bytes"),
            ("yes", "more than a signature"),
            ("exit 7", "exit status: 7"),
            ("kill -9 $$", "signal: 9"),
            ("exec sleep 30", "within 5 s"),
        ] {
            token.does(script);
            let refused = home.publish().ends(12);
            assert!(refused.err.contains(says), "{script}: {}", refused.err);
            assert_eq!(token.head(), before, "{script}");
        }
        token.does(SIGNS);
        // Nothing that was not signed is remembered as signed.
        assert_eq!(home.publish().ends(0).field("version"), version);
    }
    // A program that signs the version and not its second signature.
    token.does("[ -e once ] && exit 1; touch once; openssl pkeyutl -sign -rawin -inkey token.pem -in /dev/stdin");
    home.run(&["--json", "publish", "tree", "new", "--key", "key"])
        .ends(12);
    assert!(!home.path("new").exists());
}

#[test]
fn ctrl_c_ends_the_wait_for_a_program() {
    let Some(token) = Token::new() else { return };
    let home = &token.home;
    token.refer(&[]).ends(0);
    token.does("echo $$ >id; exec sleep 60");
    let mut publish = home.command(&["publish", "tree", "repo", "--key", "key"]);
    let publish = publish.stderr(Stdio::piped()).spawn().unwrap();
    let id = || std::fs::read_to_string(home.path("id")).unwrap_or_default();
    wait_until("the program runs", || id().ends_with('\n'));
    let number = rustix::process::Pid::from_child(&publish);
    rustix::process::kill_process(number, rustix::process::Signal::INT).unwrap();
    let ended = Ran::of(publish.wait_with_output().unwrap()).ends(130);
    assert!(ended.err.contains("interrupted"), "{}", ended.err);
    let place = format!("/proc/{}", id().trim());
    wait_until("the program is gone", || !PathBuf::from(&place).exists());
    assert!(token.head().is_none());
}

#[test]
fn file_is_written_only_for_a_key_that_signs() {
    let Some(token) = Token::new() else { return };
    let home = &token.home;
    token.does("exit 1");
    token.refer(&[]).ends(12);
    assert!(!home.path("key").exists());
    let tried = token.refer(&["--untried"]).ends(0).field("tried");
    assert_eq!(tried, false);
    token.refer(&["--untried"]).ends(1);
    // A key that the program does not have.
    token.does(SIGNS);
    home.run(&["key", "new", "--out", "own", "--no-passphrase"])
        .ends(0);
    let program = home.path("program");
    let program = program.to_str().unwrap();
    let refer = |key: &str, out: &str, rest: &[&str]| {
        home.run(&[&["key", "refer", key, "--out", out], rest].concat())
    };
    let other = refer("own", "k", &["--", "sh", program]).ends(12);
    assert!(other.err.contains("wrong signature"), "{}", other.err);
    refer("nowhere", "k", &["--", "sh", program]).ends(2);
    refer("program", "k", &["--", "sh", program]).ends(2);
    refer("token.pub", "k", &["--", "./no-such-program"]).ends(12);
    refer("token.pub", "k", &["--untried", "--", "a\nb"]).ends(2);
    refer(
        "token.pub",
        "k",
        &["--within", "2days", "--", "sh", program],
    )
    .ends(2);
    refer("token.pub", "k", &[]).ends(2);
    refer("token.pub", "k", &["--ssh-agent", "--", "sh"]).ends(2);
    home.run(&["key", "refer", "--out", "k", "--", "sh", program])
        .ends(2);
    let none = refer("token.pub", "k", &["--ssh-agent"]).ends(12);
    assert!(none.err.contains("SSH_AUTH_SOCK"), "{}", none.err);
    assert!(!home.path("k").exists());
    // Another directory: the program was named by a relative path.
    std::fs::write(home.path("tool"), format!("#!/bin/sh\nexec sh {program}\n")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(home.path("tool"), mode).unwrap();
    refer("token.pub", "k", &["--", "./tool"]).ends(0);
    let mut publish = home.command(&["publish", "../tree", "../repo", "--key", "../k"]);
    let published = publish.current_dir(home.path("tree")).output().unwrap();
    Ran::of(published).ends(0);
}

#[test]
fn key_elsewhere_is_refused_where_its_secret_is_needed() {
    let Some(token) = Token::new() else { return };
    let home = &token.home;
    token.refer(&[]).ends(0);
    let serve = [
        "serve",
        "shared",
        "--accept",
        "genesis",
        "--orderer-key",
        "key",
    ];
    std::fs::write(home.path("genesis"), "").unwrap();
    let refused = home.run(&serve).ends(12);
    assert!(refused.err.contains("lies elsewhere"), "{}", refused.err);
    // Others could change what runs.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o620);
    std::fs::set_permissions(home.path("key"), mode).unwrap();
    home.publish().ends(12);
}

/// A real ssh-agent, ended on drop.
struct Agent {
    child: Child,
    socket: PathBuf,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Agent {
    /// `None` if it is not installed.
    fn start(home: &Home) -> Option<Agent> {
        let socket = home.path("agent");
        let mut agent = Command::new("ssh-agent");
        agent.arg("-D").arg("-a").arg(&socket).stdout(Stdio::null());
        let Ok(child) = agent.spawn() else {
            skipped("a key with the ssh-agent", "no ssh-agent");
            return None;
        };
        let agent = Agent { child, socket };
        wait_until("the agent listens", || agent.socket.exists());
        Some(agent)
    }

    /// Makes a key in the file `name` of `home`.
    fn make(&self, home: &Home, kind: &[&str], name: &str) {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-N", "", "-C", name, "-f"]).arg(name);
        let made = keygen.args(kind).current_dir(home.path("")).status();
        assert!(made.unwrap().success());
    }

    fn add(&self, home: &Home, args: &[&str]) {
        let mut add = Command::new("ssh-add");
        add.arg("-q").args(args).env("SSH_AUTH_SOCK", &self.socket);
        assert!(add.current_dir(home.path("")).status().unwrap().success());
    }

    fn run(&self, home: &Home, args: &[&str]) -> Ran {
        let mut command = home.command(args);
        Ran::of(command.env("SSH_AUTH_SOCK", &self.socket).output().unwrap())
    }
}

#[test]
fn agent_signs_wherever_a_key_file_does() {
    let home = Home::new();
    let Some(agent) = Agent::start(&home) else {
        return;
    };
    let run = |args: &[&str]| agent.run(&home, args);
    let refer = ["--json", "key", "refer", "--ssh-agent", "--out", "key"];
    let empty = run(&refer).ends(12);
    assert!(empty.err.contains("no key"), "{}", empty.err);
    agent.make(&home, &["-t", "ecdsa"], "other");
    agent.add(&home, &["other"]);
    let misfit = run(&refer).ends(12);
    assert!(misfit.err.contains("other types"), "{}", misfit.err);
    let misfit = run(&[&refer[..], &["other.pub"]].concat()).ends(2);
    assert!(misfit.err.contains("ecdsa-sha2"), "{}", misfit.err);

    agent.make(&home, &["-t", "ed25519"], "ann");
    agent.add(&home, &["ann"]);
    let made = run(&refer).ends(0);
    assert_eq!(made.field("by"), "ssh-agent");
    agent.make(&home, &["-t", "ed25519"], "ben");
    agent.add(&home, &["ben"]);
    let several = run(&["key", "refer", "--ssh-agent", "--out", "k"]).ends(2);
    assert!(several.err.contains("ann") && several.err.contains("ben"));
    run(&["key", "refer", "ben.pub", "--ssh-agent", "--out", "ben-key"]).ends(0);

    std::fs::create_dir(home.path("tree")).unwrap();
    std::fs::write(home.path("tree/a"), "hello\n").unwrap();
    let two = ["publish", "tree", "repo", "--key", "key"];
    let published = run(&[&["--json"], &two[..]].concat()).ends(0);
    run(&["renew", "repo", "--key", "key"]).ends(0);
    run(&["--yes", "policy", "new", "repo", "--out", "p"]).ends(0);
    let other = run(&[
        "--yes", "policy", "sign", "p", "--key", "ben-key", "--out", "q",
    ]);
    other.ends(12);
    run(&["--yes", "policy", "sign", "p", "--key", "key", "--out", "q"]).ends(0);
    run(&["policy", "install", "q", "repo"]).ends(0);
    let volume = published.field("volume");
    let source = home.source(volume.as_str().unwrap(), "repo");
    assert_eq!(home.run(&["cat", &source, "a"]).ends(0).out, "hello\n");

    // The owner of a shared volume.
    run(&["orderer", "new", "--out", "orderer", "--no-passphrase"]).ends(0);
    let orderer = home.run(&["--json", "key", "show", "orderer"]).ends(0);
    let orderer = orderer.field("key");
    let begin = ["share", "init", "notes", "--server", "bulla://localhost"];
    let who = ["--user", "ada", "--owner-key", "key", "--out", "genesis"];
    let server = ["--orderer", orderer.as_str().unwrap()];
    run(&[&begin[..], &who, &server].concat()).ends(0);

    // What the agent has forgotten, and an agent that is gone.
    agent.add(&home, &["-d", "ann"]);
    let forgotten = run(&two).ends(12);
    assert!(forgotten.err.contains("does not have this key"));
    drop(agent);
    let gone = home.run(&two).ends(12);
    assert!(gone.err.contains("SSH_AUTH_SOCK"), "{}", gone.err);
}
