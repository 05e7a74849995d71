//! Volumes whose readers demand cosignatures, with real witnesses: honest ones, dead ones, and a publisher who shows two
//! histories or is killed in the middle.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use store::repository::Repository;
use store::writer::Writer;
use trust::head::Head;

use crate::separate_roles::People;
use crate::support::{Ran, copy, wait_until};

/// Makes the memory of a witness, the first time.
pub fn remember(people: &People, name: &str) -> String {
    let state = people.path(&format!("memory-{name}"));
    let path = state.to_str().unwrap().to_owned();
    if !state.exists() {
        let new = ["witness", "new", "--key", name, "--state", &path];
        let made = people.run(&new).ends(0);
        assert_eq!(made.field("key"), people.key(name).as_str());
    }
    path
}

/// A running `bulla witness run`.
pub struct Witness {
    pub child: Child,
    pub url: String,
}

impl Witness {
    /// Starts the witness of this name, with its key and memory.
    pub fn start(people: &People, name: &str, volume: &str) -> Witness {
        Witness::start_with(people, name, volume, &[])
    }

    /// The same with more arguments.
    pub fn start_with(people: &People, name: &str, volume: &str, more: &[&str]) -> Witness {
        let follows = format!("{volume}={}", people.key("p"));
        let state = remember(people, name);
        let mut command = people.home.command(&run(name, &follows, &state));
        let mut child = command
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let record: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(record["key"], people.key(name).as_str());
        let url = record["url"].as_str().unwrap().to_owned();
        Witness { child, url }
    }

    /// Sends SIGTERM.
    pub fn ask_to_end(&self) {
        let kill = format!("kill {}", self.child.id());
        let kill = Command::new("sh").args(["-c", &kill]).status();
        assert!(kill.unwrap().success());
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The command line of a running witness.
pub fn run<'a>(name: &'a str, follows: &'a str, state: &'a str) -> [&'a str; 13] {
    [
        "--json",
        "witness",
        "run",
        "--key",
        name,
        "--name",
        name,
        "--listen",
        "127.0.0.1:0",
        "--volume",
        follows,
        "--state",
        state,
    ]
}

/// The logs that a witness has cosigned.
pub fn cosigned(people: &People, name: &str) -> Ran {
    let state = people.path(&format!("memory-{name}"));
    let state = state.to_str().unwrap();
    people.run(&["witness", "list", "--state", state]).ends(0)
}

/// The size of the newest log that a witness has cosigned.
pub fn size(people: &People, name: &str) -> u64 {
    let logs = cosigned(people, name).records("log");
    logs.last().map_or(0, |log| log["size"].as_u64().unwrap())
}

/// A command and the witnesses that it asks.
pub fn asking<'a>(args: &[&'a str], urls: &[&'a str]) -> Vec<&'a str> {
    let flags = urls.iter().flat_map(|url| ["--witness", url]);
    args.iter().copied().chain(flags).collect()
}

pub const PUBLISH: [&str; 5] = ["publish", "tree", "repo", "--key", "p"];

pub fn publish(people: &People, urls: &[&str]) -> Ran {
    people.run(&asking(&PUBLISH, urls))
}

/// Proposes and signs a policy with these changes. The file is `next-p`.
pub fn signed_policy(people: &People, changes: &[&str], expect: &str) {
    let propose = [&["policy", "new", "repo", "--out", "next"], changes].concat();
    people.run(&propose).ends(0);
    let expect = format!("--expect={expect}");
    let sign = [
        "--yes", "policy", "sign", "next", "--key", "p", "--out", "next-p", &expect,
    ];
    people.as_one("p", &sign).ends(0);
}

pub const INSTALL: [&str; 6] = ["policy", "install", "next-p", "repo", "--key", "p"];

/// What readers must see: a policy with a quorum of two of these witnesses.
pub fn quorum(people: &People, names: &[&str]) {
    let keys: Vec<String> = names.iter().map(|name| people.key(name)).collect();
    let adds: Vec<String> = keys.iter().map(|key| format!("witnesses={key}")).collect();
    let mut changes = vec!["--needed", "witnesses=2"];
    for add in &adds {
        changes.extend(["--add", add]);
    }
    signed_policy(people, &changes, &format!("witnesses=2/{}", keys.join(",")));
}

/// A volume with version 1, and a policy with a quorum of two of three witnesses that run.
pub fn begun() -> (People, String, [Witness; 3]) {
    let people = People::new(&["p", "w1", "w2", "w3", "w4"]);
    let made = people.run(&PUBLISH).ends(0);
    let volume = made.field("volume").as_str().unwrap().to_owned();
    let witnesses = ["w1", "w2", "w3"].map(|name| Witness::start(&people, name, &volume));
    quorum(&people, &["w1", "w2", "w3"]);
    let urls = [0, 1, 2].map(|at: usize| witnesses[at].url.as_str());
    people.run(&asking(&INSTALL, &urls)).ends(0);
    (people, volume, witnesses)
}

#[test]
fn quorum_of_two_of_three_serves_readers_and_mirrors() {
    let (people, volume, mut witnesses) = begun();
    assert_eq!(people.read("old", &volume).ends(0).out, "one");
    people.write("two");
    // No witness was named, so nothing was signed.
    let refused = publish(&people, &[]).ends(2);
    assert!(refused.err.contains("--witness URL"), "{}", refused.err);
    let [one, two, three] = [0, 1, 2].map(|at: usize| witnesses[at].url.clone());
    let all = [one.as_str(), &two, &three];
    let published = publish(&people, &all).ends(0);
    assert_eq!(published.field("version"), 2);
    // One of three is down.
    witnesses[2].kill();
    let renew = asking(&["renew", "repo", "--key", "p"], &all);
    assert_eq!(people.run(&renew).ends(0).field("version"), 3);
    people.write("three");
    assert_eq!(publish(&people, &all).ends(0).field("version"), 4);
    for reader in ["old", "new"] {
        assert_eq!(people.read(reader, &volume).ends(0).out, "three");
    }
    let source = people.home.source(&volume, "repo");
    people.run(&["verify", &source]).ends(0);
    people
        .run(&["prove", &source, "a", "--out", "proof"])
        .ends(0);
    people.run(&["check", "proof", "--volume", &volume]).ends(0);
    people
        .as_one("mirror", &["pull", &source, "replica"])
        .ends(0);
    let served = people.home.serve("replica");
    let read = ["cat", &served.source, "a"];
    assert!(people.as_one("far", &read).ends(0).out.contains("dGhyZWU="));
    // A policy with the same witnesses needs nobody: the version is cosigned already.
    let propose = [
        "policy",
        "new",
        "repo",
        "--out",
        "next",
        "--policy-valid",
        "9y",
    ];
    people.run(&propose).ends(0);
    let sign = [
        "--yes", "policy", "sign", "next", "--key", "p", "--out", "next-p",
    ];
    people.as_one("p", &sign).ends(0);
    people.run(&INSTALL[..4]).ends(0);
    assert_eq!(people.read("old", &volume).ends(0).out, "three");
    // w3 has not cosigned what was made without it.
    assert_eq!(size(&people, "w1"), size(&people, "w2"));
    assert!(size(&people, "w3") < size(&people, "w1"));
}

/// Changes the head of a repository, as its mirror could.
fn change_head(people: &People, repo: &str, change: impl FnOnce(&mut Head)) {
    let repository = Repository::open(people.path(repo)).unwrap();
    let mut writer = Writer::begin(&repository).unwrap();
    let mut head = Head::decode(writer.statements()).unwrap();
    change(&mut head);
    writer.commit(&head.encode().unwrap()).unwrap();
}

#[test]
fn mirror_without_the_cosignatures_is_refused() {
    let (people, volume, witnesses) = begun();
    people.write("two");
    let urls = [0, 1, 2].map(|at: usize| witnesses[at].url.as_str());
    publish(&people, &urls).ends(0);
    for repo in ["none", "one"] {
        copy(&people.path("repo"), &people.path(repo));
    }
    change_head(&people, "none", |head| head.checkpoint = None);
    change_head(&people, "one", |head| {
        let note = String::from_utf8(head.checkpoint.take().unwrap().to_vec()).unwrap();
        assert!(note.lines().count() >= 7, "{note}");
        let kept: String = note.split_inclusive('\n').take(6).collect();
        head.checkpoint = Some(kept.into());
    });
    for (repo, why) in [
        ("none", "the witnessed checkpoint is missing"),
        ("one", "too few witnesses cosigned"),
    ] {
        let refused = people.read_at("reader", &volume, repo).ends(20);
        assert!(refused.err.contains(why), "{}", refused.err);
        let source = people.home.source(&volume, repo);
        people
            .as_one("mirror", &["pull", &source, "replica"])
            .ends(20);
        people.as_one("reader", &["verify", &source]).ends(20);
    }
    assert_eq!(people.read("reader", &volume).ends(0).out, "two");
}

#[test]
fn publisher_with_two_histories_gets_one_cosigned() {
    let (people, volume, witnesses) = begun();
    copy(&people.path("repo"), &people.path("other"));
    copy(
        &people.path("state-repository"),
        &people.path("state-other"),
    );
    let urls = [0, 1, 2].map(|at: usize| witnesses[at].url.as_str());
    people.write("two");
    publish(&people, &urls).ends(0);
    people.write("another two");
    let second = asking(&["publish", "tree", "other", "--key", "p"], &urls);
    let refused = people.as_one("other", &second).ends(22);
    assert!(refused.err.contains("two logs"), "{}", refused.err);
    // It gets none by going on either.
    people.as_one("other", &second).ends(22);
    let kept = cosigned(&people, "w1").records("evidence");
    assert!(!kept.is_empty());
    let conflict = kept[0]["file"].as_str().unwrap();
    assert!(conflict.contains("/conflict."), "{conflict}");
    for reader in ["one", "two"] {
        assert_eq!(people.read_at(reader, &volume, "other").ends(0).out, "one");
        assert_eq!(people.read(reader, &volume).ends(0).out, "two");
    }
}

#[test]
fn quorum_that_is_not_reached_costs_nothing() {
    let (people, volume, mut witnesses) = begun();
    people.write("two");
    let [one, two, three] = [0, 1, 2].map(|at: usize| witnesses[at].url.clone());
    let all = [one.as_str(), &two, &three];
    witnesses[1].kill();
    witnesses[2].kill();
    let refused = publish(&people, &all).ends(30);
    for named in [people.key("w2"), people.key("w3"), two.clone()] {
        assert!(
            refused.err.contains(&named),
            "{named} is not in {}",
            refused.err
        );
    }
    // w1 has cosigned a log with version 2 in it, and readers are shown version 1.
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
    publish(&people, &all).ends(30);
    witnesses[1] = Witness::start(&people, "w2", &volume);
    let urls = [one.as_str(), &witnesses[1].url];
    let published = publish(&people, &urls).ends(0);
    assert_eq!(published.field("version"), 4);
    for reader in ["reader", "new"] {
        assert_eq!(people.read(reader, &volume).ends(0).out, "two");
    }
    people
        .run(&["verify", &people.home.source(&volume, "repo")])
        .ends(0);
}

#[test]
fn witnesses_that_are_gone_are_replaced() {
    let (people, volume, mut witnesses) = begun();
    people.write("two");
    let [one, two, three] = [0, 1, 2].map(|at: usize| witnesses[at].url.clone());
    witnesses[1].kill();
    witnesses[2].kill();
    publish(&people, &[&one, &two, &three]).ends(30);
    // The owners name two others. Version 2 becomes visible with their policy.
    let [w1, w2, w3, w4] = ["w1", "w2", "w3", "w4"].map(|name| people.key(name));
    let replace = format!("{w2}={w4}");
    let drop_one = format!("witnesses={w3}");
    let changes = ["--replace-key", &replace, "--remove", &drop_one];
    let changes = [&changes[..], &["--needed", "witnesses=2"]].concat();
    signed_policy(&people, &changes, &format!("witnesses=2/{w1},{w4}"));
    let fourth = Witness::start(&people, "w4", &volume);
    let install = asking(&INSTALL, &[&one, &fourth.url]);
    people.run(&install).ends(0);
    for reader in ["old", "new"] {
        assert_eq!(people.read(reader, &volume).ends(0).out, "two");
    }
    people.write("three");
    publish(&people, &[&one, &fourth.url]).ends(0);
    assert_eq!(people.read("old", &volume).ends(0).out, "three");
}

/// A witness that takes requests and never answers. Tells of each request.
fn silent() -> (String, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let mut stream: TcpStream = stream.unwrap();
            let mut some = [0; 64];
            let read = stream.read(&mut some).unwrap_or(0);
            held.push(stream);
            if read == 0 || tell.send(()).is_err() {
                return;
            }
        }
    });
    (url, told)
}

/// Publishes, and kills the publisher when one witness has cosigned and another is silent.
fn killed_in_between(people: &People, witness: &str) {
    let before = size(people, "w1");
    let (other, told) = silent();
    let mut command = people.home.command(&asking(&PUBLISH, &[witness, &other]));
    command.env("BULLA_STATE_DIR", people.path("state-repository"));
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    told.recv_timeout(Duration::from_secs(60)).unwrap();
    wait_until("w1 has cosigned", || size(people, "w1") > before);
    assert!(
        child.try_wait().unwrap().is_none(),
        "it waits for the other one"
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn publisher_that_is_killed_after_a_cosignature_goes_on() {
    let (people, volume, witnesses) = begun();
    let urls = [0, 1, 2].map(|at: usize| witnesses[at].url.as_str());
    people.write("two");
    killed_in_between(&people, urls[0]);
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
    // The next publication: w1 would refuse any log without the version that it cosigned.
    people.write("three");
    publish(&people, &urls[..2]).ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "three");
    // The next renewal shows the tree that was signed.
    people.write("four");
    killed_in_between(&people, urls[0]);
    let renew = asking(&["renew", "repo", "--key", "p"], &urls[..2]);
    people.run(&renew).ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "four");
    // The next policy, too.
    people.write("five");
    killed_in_between(&people, urls[0]);
    let propose = [
        "policy",
        "new",
        "repo",
        "--out",
        "next",
        "--policy-valid",
        "9y",
    ];
    people.run(&propose).ends(0);
    let sign = [
        "--yes", "policy", "sign", "next", "--key", "p", "--out", "next-p",
    ];
    people.as_one("p", &sign).ends(0);
    people.run(&asking(&INSTALL, &urls[..2])).ends(0);
    for reader in ["reader", "new"] {
        assert_eq!(people.read(reader, &volume).ends(0).out, "five");
    }
    people
        .run(&["verify", &people.home.source(&volume, "repo")])
        .ends(0);
}

/// Cosigns a file on the machine of `who`.
pub fn witness_sign(people: &People, who: &str, volume: &str, file: &str, out: &str) -> Ran {
    let follows = format!("{volume}={}", people.key("p"));
    let state = remember(people, who);
    people.as_one(
        who,
        &[
            "witness", "sign", file, "--out", out, "--key", who, "--name", who, "--volume",
            &follows, "--state", &state,
        ],
    )
}

#[test]
fn witnesses_without_a_network_cosign_files() {
    let people = People::new(&["p", "w1", "w2", "w3"]);
    let made = people.run(&PUBLISH).ends(0);
    let volume = made.field("volume").as_str().unwrap().to_owned();
    quorum(&people, &["w1", "w2", "w3"]);
    let policy = ["policy", "install", "next-p", "repo"];
    let out = ["--key", "p", "--checkpoint-out", "note"];
    let told = people.run(&[&policy[..], &out].concat()).ends(0);
    assert_eq!(told.field("waits_for_witnesses"), true);
    witness_sign(&people, "w1", &volume, "note", "note-1").ends(0);
    // The second one adds its line to the file of the first.
    witness_sign(&people, "w2", &volume, "note-1", "both").ends(0);
    let few = [&policy[..], &["--cosigned", "note-1"]].concat();
    people.run(&few).ends(30);
    assert_eq!(
        people
            .run(&["policy", "show", "repo"])
            .ends(0)
            .field("number"),
        0
    );
    people
        .run(&[&policy[..], &["--cosigned", "both"]].concat())
        .ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
    // A version that was signed elsewhere, and copies that different witnesses sign.
    people.write("two");
    people
        .run(&["publish", "tree", "repo", "--unsigned", "--out", "request"])
        .ends(0);
    let [w1, w2, w3] = ["w1", "w2", "w3"].map(|name| people.key(name));
    let expect = format!("--expect=witnesses=2/{w1},{w2},{w3}");
    let sign = [
        "--yes", "sign", "request", "--key", "p", "--out", "signed", &expect,
    ];
    people.as_one("p", &sign).ends(0);
    let install = ["publish", "--install", "signed", "repo"];
    people.run(&install).ends(2);
    let out = ["--checkpoint-out", "note"];
    people.run(&[&install[..], &out].concat()).ends(12);
    let told = people
        .run(&[&install[..], &out, &["--key", "p"]].concat())
        .ends(0);
    assert_eq!(told.field("waits_for_witnesses"), true);
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
    witness_sign(&people, "w1", &volume, "note", "note-1").ends(0);
    // w3 has cosigned nothing yet, and needs no proof.
    witness_sign(&people, "w3", &volume, "note", "note-3").ends(0);
    let stale = [&install[..], &["--cosigned", "both"]].concat();
    people.run(&stale).ends(20);
    let cosigned = ["--cosigned", "note-1", "--cosigned", "note-3"];
    let installed = people.run(&[&install[..], &cosigned].concat()).ends(0);
    assert_eq!(installed.field("waits_for_witnesses"), false);
    assert_eq!(people.read("reader", &volume).ends(0).out, "two");
    // The log's own line is in the files too.
    let statements = Repository::open(people.path("repo")).unwrap().statements();
    let note = Head::decode(&statements).unwrap().checkpoint.unwrap();
    let note = String::from_utf8(note.to_vec()).unwrap();
    let own = format!("\n\n\u{2014} bulla/{volume}/0 ");
    assert!(note.contains(&own), "{note}");
    people.run(&["renew", "repo", "--key", "p"]).ends(2);
    // A file that somebody has changed on its way.
    let note = std::fs::read_to_string(people.path("note")).unwrap();
    let changed = note.replacen("\n4\n", "\n5\n", 1);
    assert_ne!(changed, note);
    std::fs::write(people.path("changed"), changed).unwrap();
    witness_sign(&people, "w2", &volume, "changed", "x").ends(20);
    std::fs::write(people.path("changed"), "no checkpoint").unwrap();
    witness_sign(&people, "w2", &volume, "changed", "x").ends(20);
    assert!(!people.path("x").exists());
}

/// Posts a body, and gives the status, the headers and the body of the answer.
pub fn post(url: &str, body: &str) -> (u16, String, String) {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let length = body.len();
    let head = format!(
        "POST /add-checkpoint HTTP/1.1\r\nHost: w\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head[9..12].parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}

#[test]
fn answers_are_those_of_the_protocol() {
    let (people, volume, witnesses) = begun();
    let url = &witnesses[0].url;
    people.write("two");
    let urls = [0, 1].map(|at: usize| witnesses[at].url.as_str());
    publish(&people, &urls).ends(0);
    let note = cosigned(&people, "w1").records("log")[0]["note"].clone();
    let note = note.as_str().unwrap();
    let size = size(&people, "w1");
    let ask = |old: u64, proof: &str, note: &str| post(url, &format!("old {old}\n{proof}\n{note}"));
    // The same log is cosigned again.
    let (status, _, line) = ask(size, "", note);
    assert_eq!(status, 200, "{line}");
    assert!(
        line.starts_with("\u{2014} w1 ") && line.ends_with('\n'),
        "{line}"
    );
    let (status, head, told) = ask(0, "", note);
    assert_eq!((status, told), (409, format!("{size}\n")));
    assert!(
        head.contains("content-type: text/x.tlog.size\r\n"),
        "{head}"
    );
    assert_eq!(ask(size + 1, "", note).0, 400);
    assert_eq!(post(url, "nonsense").0, 400);
    let zeros = "A".repeat(43) + "=\n";
    assert_eq!(ask(size, &zeros, note).0, 422);
    let unsigned: String = note.split_inclusive('\n').take(4).collect();
    assert_eq!(ask(size, "", &unsigned).0, 403);
    let other = "vol1nj8nmtllrm059w4raplj0hc9eyjrfkyemyyhlxtqjz3maz92q6xsnrgpaz";
    assert_eq!(ask(size, "", &note.replace(&volume, other)).0, 404);
    // The key of a witness, as other programs name it.
    let key = people
        .run(&["witness", "key", "--key", "w1", "--name", "w1"])
        .ends(0);
    let named = key.field("verifier_key");
    assert!(named.as_str().unwrap().starts_with("w1+"));
    // Two processes with one memory would cosign two histories.
    let follows = format!("{volume}={}", people.key("p"));
    let state = remember(&people, "w1");
    people.run(&run("w1", &follows, &state)[1..]).ends(11);
    // SIGTERM ends it in order.
    let mut first = Witness::start(&people, "w4", &volume);
    first.ask_to_end();
    assert!(first.child.wait().unwrap().success());
}
