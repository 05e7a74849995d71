//! Servers of shared volumes that lie, as processes: the forking server of `sim`, with one log for each device or with
//! messages that it drops, and what devices, members and third persons then see.

use std::path::{Path, PathBuf};

use crate::shared_lab::{Orderer, founded, joined};
use crate::shared_recovery::{accepted, names, recovered};
use crate::support::{Home, Ran};

pub fn put(home: &Home, name: &str, content: &str) {
    std::fs::write(home.path(name), content).unwrap();
    home.run(&["put", name, "notes"]).ends(0);
}

pub fn read(home: &Home, name: &str) -> String {
    home.run(&["cat", "notes", name]).ends(0).out
}

/// The key of a home's device.
fn own_key(home: &Home) -> String {
    let listed = home.run(&["--json", "share", "device", "list", "notes"]);
    let devices = listed.ends(0).records("device");
    let own = devices.iter().find(|device| device["this"] == true);
    own.unwrap()["key"].as_str().unwrap().to_owned()
}

/// The kind of the error of a command that fails.
pub fn kind(ran: &Ran) -> String {
    ran.field("error")["kind"].as_str().unwrap().to_owned()
}

/// The one file of evidence that a home has.
fn evidence_of(home: &Home) -> PathBuf {
    let shared = home.path(".local/state/bulla/shared");
    let volume = std::fs::read_dir(shared).unwrap().next().unwrap().unwrap();
    let mut files = std::fs::read_dir(volume.path().join("evidence")).unwrap();
    files.next().expect("evidence").unwrap().path()
}

/// A volume whose server shows ada one log and the laptop another one.
pub fn forked() -> (Orderer, Home, Home) {
    let (mut orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    put(&ada, "before", "both know this\n");
    assert_eq!(read(&laptop, "before"), "both know this\n");
    orderer.turn_into_liar(&["repo", "other"]);
    put(&ada, "plan", "the ferry goes at nine\n");
    put(&laptop, "plan", "the ferry goes at ten\n");
    (orderer, ada, laptop)
}

/// Compares what the first has seen with what the second has seen, where there is a fork; returns the evidence.
pub fn compared(first: &Home, second: &Home) -> PathBuf {
    let text = first.run(&["share", "compare", "notes"]).ends(0).out;
    std::fs::write(second.path("seen"), text).unwrap();
    // A note of a longer log than one's own proves nothing: the second log gets longer.
    for name in ["x", "y", "z"] {
        put(second, name, "more\n");
    }
    let told = second.run(&["--json", "share", "compare", "notes", "seen"]);
    let told = told.ends(22);
    assert_eq!(kind(&told), "fork");
    PathBuf::from(told.field("evidence").as_str().unwrap())
}

/// The file convicts the server for somebody who has nothing else, and convicts nobody with another byte.
fn convicts(evidence: &Path) {
    let third = Home::new();
    let evidence = evidence.to_str().unwrap();
    let verdict = third.run(&["--json", "share", "check", evidence]).ends(0);
    assert_eq!(verdict.field("convicted"), "orderer");
    let bytes = std::fs::read(evidence).unwrap();
    for at in (0..bytes.len()).step_by(bytes.len() / 12) {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        std::fs::write(third.path("changed"), changed).unwrap();
        let ran = third.run(&["--json", "share", "check", "changed"]);
        // A changed number can mean a later format.
        assert!(matches!(ran.code, 13 | 20), "byte {at}: {}", ran.code);
    }
}

#[test]
fn forked_devices_notice_nothing_until_they_compare() {
    let (_orderer, ada, laptop) = forked();
    for (home, own) in [(&ada, "at nine"), (&laptop, "at ten")] {
        assert!(read(home, "plan").contains(own));
        put(home, "again", own);
        assert_eq!(
            home.run(&["ls", "notes"]).ends(0).out,
            "again\nbefore\nplan\n"
        );
        let status = home.run(&["--json", "share", "status", "notes"]).ends(0);
        assert_eq!(status.field("differing"), 0);
    }
    convicts(&compared(&ada, &laptop));
    let refused = laptop.run(&["--json", "put", "x", "notes"]).ends(22);
    assert_eq!(kind(&refused), "fork");
    // The other device has not compared, and goes on.
    put(&ada, "again", "more\n");
}

#[test]
fn device_that_is_shown_the_other_branch_uses_nothing_of_it() {
    let (mut orderer, ada, laptop) = forked();
    // The server keeps the protocol's rules: it finds a note of its own key that its log contradicts, and shows that.
    orderer.turn_into_liar(&["other", "repo"]);
    for (home, own, other) in [(&ada, "at nine", "at ten"), (&laptop, "at ten", "at nine")] {
        let told = home.run(&["cat", "notes", "plan"]).ends(22);
        assert!(!told.out.contains(other), "{}", told.out);
        convicts(&evidence_of(home));
        // Each goes on reading its own branch.
        let told = home.run(&["cat", "notes", "plan"]).ends(22);
        assert!(told.out.contains(own), "{}", told.out);
    }
}

/// Exchanges the server's directory for another one of this name.
fn exchange(orderer: &mut Orderer, keep_as: &str, take: &str) {
    orderer.stop();
    let home = &orderer.home;
    std::fs::rename(home.path("repo"), home.path(keep_as)).unwrap();
    std::fs::rename(home.path(take), home.path("repo")).unwrap();
    orderer.start();
}

#[test]
fn honest_server_shows_a_device_of_the_other_branch_the_fork_and_serves_its_own() {
    let (mut orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    put(&ada, "before", "both know this\n");
    read(&laptop, "before");
    // The directory is copied, and each device writes to one of the copies.
    orderer.stop();
    let copied = std::process::Command::new("cp")
        .args(["-a", "--sparse=always", "repo", "copy"])
        .current_dir(orderer.home.path(""))
        .status();
    assert!(copied.unwrap().success());
    orderer.start();
    put(&ada, "plan", "the ferry goes at nine\n");
    exchange(&mut orderer, "newest", "copy");
    for text in ["at ten", "at eleven", "at noon", "at one"] {
        put(&laptop, "plan", text);
    }
    let told = ada.run(&["cat", "notes", "plan"]).ends(22);
    assert!(!told.out.contains("at o") && !told.out.contains("at noon"));
    assert!(!told.err.contains("fewer leaves"), "{}", told.err);
    convicts(&evidence_of(&ada));
    let refused = ada.run(&["--json", "put", "before", "notes"]).ends(22);
    assert_eq!(kind(&refused), "fork");
    // Those of its own branch go on, after a restart too.
    put(&laptop, "more", "goes on\n");
    orderer.stop();
    orderer.start();
    put(&laptop, "more", "goes on\n");
}

#[test]
fn device_with_the_shorter_log_is_told_to_compare_the_other_way_round() {
    let (_orderer, ada, laptop) = forked();
    for name in ["x", "y", "z"] {
        put(&ada, name, "more\n");
    }
    let text = ada.run(&["share", "compare", "notes"]).ends(0).out;
    std::fs::write(laptop.path("seen"), text).unwrap();
    let told = laptop.run(&["share", "compare", "notes", "seen"]);
    assert!(told.err.contains("the other way round"), "{}", told.err);
    let text = laptop.run(&["share", "compare", "notes"]).ends(0).out;
    std::fs::write(ada.path("seen"), text).unwrap();
    ada.run(&["share", "compare", "notes", "seen"]).ends(22);
}

#[test]
fn server_that_joins_the_branches_of_a_fork_is_convicted_by_both_devices() {
    let (mut orderer, ada, laptop) = forked();
    orderer.turn_into_liar(&["other", "repo", "--drop", "note"]);
    for (home, own) in [(&ada, "at nine"), (&laptop, "at ten")] {
        let told = home.run(&["cat", "notes", "plan"]).ends(22);
        assert!(
            told.out.is_empty() || told.out.contains(own),
            "{}",
            told.out
        );
        convicts(&evidence_of(home));
        let refused = home.run(&["--json", "put", "before", "notes"]).code;
        assert!(matches!(refused, 10 | 22), "{refused}");
    }
}

#[test]
fn member_who_works_with_the_server_carries_content_across_under_its_own_name() {
    let (mut orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    ada.run(&["share", "user", "add", "notes", "mallory"])
        .ends(0);
    let (one, other) = (joined(&ada, "mallory"), joined(&ada, "mallory"));
    put(&ada, "before", "both know this\n");
    for home in [&laptop, &one, &other] {
        read(home, "before");
    }
    // The server shows ada and mallory's first device one log, and the others another.
    let first = ["--first", &own_key(&ada), "--first", &own_key(&one)];
    orderer.turn_into_liar(&[&["repo", "other"], &first[..]].concat());
    put(&ada, "plan", "the ferry goes at nine\n");
    let seen = read(&one, "plan");
    put(&other, "plan", &seen);
    // The laptop has ada's content, and mallory's signature under it. No device can notice that.
    assert_eq!(read(&laptop, "plan"), "the ferry goes at nine\n");
    let status = laptop.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(status.field("differing"), 0);
    // Comparing finds the fork all the same.
    convicts(&compared(&ada, &laptop));
}

#[test]
fn author_whose_confirmations_the_server_drops_is_named() {
    let (mut orderer, ada) = founded(&["--patience", "300ms"]);
    let laptop = joined(&ada, "ada");
    orderer.turn_into_liar(&["repo", "--drop", "attest", "--drop", "ask"]);
    put(&laptop, "b", "from the laptop\n");
    let told = ada.run(&["--json", "cat", "notes", "b"]).ends(30);
    assert_eq!(kind(&told), "unattested");
    assert!(told.err.contains("device 1 of ada"), "{}", told.err);
    // With an honest server its author confirms it, and nothing is lost.
    orderer.stop();
    orderer.start();
    laptop.run(&["ls", "notes"]).ends(0);
    assert_eq!(read(&ada, "b"), "from the laptop\n");
}

#[test]
fn calls_whose_messages_the_server_drops_end_at_their_deadline() {
    let (mut orderer, ada) = founded(&[]);
    put(&ada, "a", "one\n");
    orderer.turn_into_liar(&["repo", "--drop", "mark"]);
    let told = ada.run(&["--json", "cat", "notes", "a", "--deadline", "3s"]);
    assert_eq!(kind(&told.ends(30)), "unavailable");
    orderer.turn_into_liar(&["repo", "--drop", "entry"]);
    std::fs::write(ada.path("b"), "two\n").unwrap();
    let told = ada.run(&["--json", "put", "b", "notes", "--deadline", "3s"]);
    assert_eq!(kind(&told.ends(30)), "unavailable");
    orderer.stop();
    orderer.start();
    put(&ada, "b", "three\n");
    assert_eq!(ada.run(&["ls", "notes"]).ends(0).out, "a\nb\n");
    assert_eq!(read(&ada, "b"), "three\n");
}

/// The page `shared-forks.md`, with content that no inode holds: the laptop's lies in the other directory only.
#[test]
fn work_of_the_losing_branch_comes_back_with_its_content() {
    let (mut orderer, ada, laptop) = forked();
    let plan = sim::random::noise(1, 2_000);
    std::fs::write(laptop.path("plan"), &plan).unwrap();
    laptop.run(&["put", "plan", "notes"]).ends(0);
    std::fs::create_dir(laptop.path("many")).unwrap();
    let many = |number: u64| sim::random::noise(100 + number, 2_000);
    for number in 0..30 {
        std::fs::write(laptop.path(&format!("many/{number}")), many(number)).unwrap();
    }
    laptop.run(&["put", "-r", "many", "notes"]).ends(0);
    compared(&ada, &laptop);
    // With proof against the server, and without the server, it reads and extracts its own work at once.
    orderer.stop();
    let soon = ["--deadline", "120s"];
    let began = std::time::Instant::now();
    let read_alone = laptop.command(&[&["cat", "notes", "plan"], &soon[..]].concat());
    assert_eq!(output(read_alone).stdout, plan);
    let alone = laptop.command(&[&["extract", "notes", "alone", "many"], &soon[..]].concat());
    output(alone);
    for number in 0..30 {
        let extracted = std::fs::read(laptop.path(&format!("alone/{number}"))).unwrap();
        assert_eq!(extracted, many(number), "extracted alone: {number}");
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(60));
    let rules = recovered(&ada, &[]);
    accepted(&mut orderer, &rules);
    let told = laptop.run(&["ls", "notes"]).ends(0);
    assert!(!told.err.contains("is not back"), "{}", told.err);
    for home in [&ada, &laptop] {
        let back = |beginning: &str, listed: Vec<String>| {
            let found = listed
                .into_iter()
                .find(|name| name.starts_with(&format!("{beginning} (conflict device 1 ")));
            found.unwrap_or_else(|| panic!("{beginning} is not back"))
        };
        let copy = back("plan", names(home));
        assert_eq!(output(home.command(&["cat", "notes", &copy])).stdout, plan);
        let listed = home.run(&["ls", "notes", "many"]).ends(0).out;
        let listed: Vec<String> = listed.lines().map(str::to_owned).collect();
        assert_eq!(listed.len(), 30, "{listed:?}");
        for number in 0..30 {
            let copy = format!("many/{}", back(&number.to_string(), listed.clone()));
            let content = output(home.command(&["cat", "notes", &copy])).stdout;
            assert_eq!(content, many(number), "{number}");
        }
    }
}

/// Once for each command, whatever it has put. Content of at most 256 bytes is in the journal.
#[test]
fn own_content_is_durable_when_put_ends() {
    let (_orderer, ada) = founded(&[]);
    let put = |name: &str, len: usize| {
        std::fs::write(ada.path(name), sim::random::noise(len as u64, len)).unwrap();
        let mut command = ada.command(&["put", name, "notes"]);
        let ran = command
            .env("BULLA_LOG", "share::client::own=debug")
            .output();
        Ran::of(ran.unwrap()).ends(0).err
    };
    let told = put("long", 3_000_000);
    let durable = "what this device wrote is durable here";
    let lines: Vec<&str> = told.lines().filter(|line| line.contains(durable)).collect();
    assert!(
        matches!(lines[..], [line] if line.contains("segments=1")),
        "{told}"
    );
    assert!(!put("short", 200).contains(durable));
}

fn output(mut command: std::process::Command) -> std::process::Output {
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output
            .status
            .code()
            .is_some_and(|code| code == 0 || code == 22),
        "{told}"
    );
    output
}
