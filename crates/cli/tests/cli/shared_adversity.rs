//! Shared volumes whose server or clients are killed, whose server is put back or forks, and whose devices are silent.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sim::random::Random;

use crate::shared_forks::put;
use crate::shared_lab::{Orderer, Talk, founded, joined};
use crate::support::{Home, copy, wait_until};

fn write(home: &Home, name: &str, content: &str) {
    std::fs::write(home.path(name), content).unwrap();
}

fn read(home: &Home, name: &str) -> String {
    home.run(&["cat", "notes", name]).ends(0).out
}

fn content(round: u64) -> String {
    format!("round {round}\n").repeat(1 + round as usize * 200)
}

/// kill -9, and the directory as it is then.
fn copied(orderer: &mut Orderer, name: &str) -> PathBuf {
    orderer.kill();
    let (repo, copy_at) = (orderer.home.path("repo"), orderer.home.path(name));
    copy(&repo, &copy_at);
    copy_at
}

fn put_back(orderer: &mut Orderer, from: &Path) {
    orderer.kill();
    let repo = orderer.home.path("repo");
    std::fs::remove_dir_all(&repo).unwrap();
    copy(from, &repo);
    orderer.start();
}

#[test]
fn killed_server_loses_nothing_that_was_acknowledged() {
    let (mut orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    let rounds = if std::env::var_os("BULLA_LONG").is_some() {
        60
    } else {
        6
    };
    let mut random = Random::new(rounds);
    let mut acknowledged = Vec::new();
    for round in 0..rounds {
        let name = format!("file{round}");
        let (home, other) = if round % 2 == 0 {
            (&ada, &laptop)
        } else {
            (&laptop, &ada)
        };
        write(home, &name, &content(round));
        let mut put = home.command(&["put", &name, "notes", "--deadline", "60s"]);
        let put = put
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(random.below(400)));
        orderer.kill();
        orderer.start();
        let ended = put.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "round {round}: {told}");
        acknowledged.push((name, round));
        let (name, round) = acknowledged.last().unwrap();
        // The server may have been killed with the confirmation in memory only: then the author confirms again.
        home.run(&["ls", "notes"]).ends(0);
        assert_eq!(read(other, name), content(*round), "round {round}");
    }
    orderer.kill();
    orderer.start();
    laptop.run(&["ls", "notes"]).ends(0);
    for (name, round) in &acknowledged {
        assert_eq!(read(&ada, name), content(*round), "{name}");
    }
}

#[test]
fn killed_client_goes_on_where_it_was() {
    let (_orderer, ada) = founded(&[]);
    let rounds = if std::env::var_os("BULLA_LONG").is_some() {
        100
    } else {
        8
    };
    let mut random = Random::new(rounds);
    let mut last = None;
    for round in 0..rounds {
        write(&ada, "file", &content(round));
        let mut put = ada.command(&["put", "file", "notes"]);
        let mut put = put
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(random.below(250)));
        // It may have ended.
        let _ = put.kill();
        if put.wait().unwrap().success() {
            last = Some(round);
        }
        let found = ada.run(&["cat", "notes", "file"]);
        match found.code {
            // What was not acknowledged may be there or not.
            0 => assert!(
                found.out == content(round)
                    || Some(&found.out) == last.map(content).as_ref()
                    || (0..round).any(|before| found.out == content(before)
                        && last.is_none_or(|last| last <= before)),
                "round {round}: {} bytes",
                found.out.len()
            ),
            _ => assert_eq!((found.code, last), (10, None), "{}", found.err),
        }
    }
    write(&ada, "file", "the end\n");
    ada.run(&["put", "file", "notes"]).ends(0);
    assert_eq!(read(&ada, "file"), "the end\n");
}

#[test]
fn server_that_was_put_back_is_noticed_and_signs_nothing() {
    let (mut orderer, ada) = founded(&[]);
    write(&ada, "a", "one\n");
    ada.run(&["put", "a", "notes"]).ends(0);
    let old = copied(&mut orderer, "old");
    orderer.start();
    write(&ada, "a", "two\n");
    ada.run(&["put", "a", "notes"]).ends(0);
    put_back(&mut orderer, &old);
    let told = ada
        .run(&["--json", "cat", "notes", "a", "--deadline", "5s"])
        .ends(21);
    assert_eq!(told.field("error")["kind"], "rollback");
}

#[test]
fn forked_devices_convict_the_server_for_a_third_person() {
    let (mut orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    write(&ada, "a", "one\n");
    ada.run(&["put", "a", "notes"]).ends(0);
    let before = copied(&mut orderer, "before");
    orderer.start();
    write(&ada, "a", "for one\n");
    ada.run(&["put", "a", "notes"]).ends(0);
    let same = ada.run(&["share", "compare", "notes"]).ends(0);
    put_back(&mut orderer, &before);
    // The other device has not seen what the first one wrote.
    write(&laptop, "b", "for the other\n");
    laptop.run(&["put", "b", "notes"]).ends(0);
    laptop.run(&["put", "b", "notes", "c"]).ends(0);
    std::fs::write(laptop.path("seen"), &same.out).unwrap();
    let told = laptop
        .run(&["--json", "share", "compare", "notes", "seen"])
        .ends(22);
    assert_eq!(told.field("error")["kind"], "fork");
    let evidence = told.field("evidence").as_str().unwrap().to_owned();
    // Another process of this device knows it too: it writes nothing, and shows what was verified before.
    let refused = laptop.run(&["--json", "put", "b", "notes", "d"]).ends(22);
    assert_eq!(refused.field("error")["kind"], "fork");
    let listed = laptop.run(&["ls", "notes"]).ends(22);
    assert_eq!(listed.out, "a\nb\nc\n");
    assert!(listed.err.contains(&evidence), "{}", listed.err);
    let third = Home::new();
    let verdict = third.run(&["--json", "share", "check", &evidence]).ends(0);
    assert_eq!(verdict.field("convicted"), "orderer");
    let mut bytes = std::fs::read(&evidence).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(third.path("changed"), bytes).unwrap();
    let code = third.run(&["share", "check", "changed"]).code;
    assert!(matches!(code, 13 | 20), "{code}");
}

#[test]
fn devices_that_have_seen_one_log_compare_as_the_same() {
    let (_orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    write(&ada, "a", "one\n");
    ada.run(&["put", "a", "notes"]).ends(0);
    let text = ada.run(&["share", "compare", "notes"]).ends(0).out;
    write(&laptop, "seen", &text);
    let same = laptop
        .run(&["--json", "share", "compare", "notes", "seen"])
        .ends(0);
    assert!(same.field("size").as_u64().unwrap() > 2);
    // A note that the server did not sign is one thing, and a text that is no note another.
    let mut lines: Vec<&str> = text.lines().collect();
    let later = format!("{}0", lines[1]);
    lines[1] = &later;
    for (seen, code, kind) in [
        (lines.join("\n") + "\n", 20, "integrity"),
        (text.replace("time", "at"), 2, "usage"),
        (text.trim_end().to_owned(), 2, "usage"),
        ("good morning\n".to_owned(), 2, "usage"),
        (String::new(), 2, "usage"),
        ("x".repeat(100_000), 2, "usage"),
    ] {
        write(&laptop, "seen", &seen);
        let args = ["--json", "share", "compare", "notes", "seen"];
        let told = laptop.run(&args).ends(code);
        assert_eq!(told.field("error")["kind"], kind, "{seen}");
        assert!(
            told.field("error")["hint"]
                .as_str()
                .unwrap()
                .contains("copy the whole text")
        );
    }
}

#[test]
fn silent_device_is_named_until_it_is_accepted() {
    let (mut orderer, ada) = founded(&["--patience", "2s"]);
    let laptop = joined(&ada, "ada");
    write(&laptop, "b", "from the other\n");
    laptop.run(&["put", "b", "notes"]).ends(0);
    // The server loses the device's confirmation, and so does not show it.
    orderer.kill();
    let _ = std::fs::remove_file(orderer.home.path("repo/confirmed"));
    orderer.start();
    let told = ada.run(&["--json", "cat", "notes", "b"]).ends(30);
    assert_eq!(told.field("error")["kind"], "unattested");
    let hint = told.field("error")["hint"].to_string();
    assert!(hint.contains("bulla share accept notes 1"), "{hint}");
    ada.run(&["share", "accept", "notes", "1"]).ends(0);
    assert_eq!(read(&ada, "b"), "from the other\n");
}

#[test]
fn relaxed_volume_uses_what_a_silent_device_wrote_and_says_so() {
    let (mut orderer, ada) = founded(&["--relaxed", "--patience", "2s"]);
    let laptop = joined(&ada, "ada");
    write(&laptop, "b", "from the other\n");
    let told = laptop.run(&["--json", "put", "b", "notes"]).ends(0);
    assert!(told.field("unattested").is_null(), "{}", told.out);
    orderer.kill();
    let _ = std::fs::remove_file(orderer.home.path("repo/confirmed"));
    orderer.start();
    let told = ada.run(&["--json", "cat", "notes", "b"]).ends(0);
    assert_eq!(told.field("unattested"), true);
    assert!(told.err.contains("warning: "), "{}", told.err);
    let status = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    let silent = |it: &serde_json::Value| it["unattested"] == true;
    assert!(
        status.records("device").iter().any(silent),
        "{}",
        status.out
    );
}

#[test]
fn server_that_was_killed_still_has_confirmations_of_devices_that_are_gone() {
    let (mut orderer, ada) = founded(&["--patience", "60s"]);
    let laptop = joined(&ada, "ada");
    write(&laptop, "b", "from the other\n");
    laptop.run(&["put", "b", "notes"]).ends(0);
    // The server keeps them a second late at most.
    let kept = orderer.home.path("repo/confirmed");
    wait_until("the server has kept the confirmations", || {
        let written = std::fs::metadata(&kept).and_then(|file| file.modified());
        let since = written.ok().and_then(|at| at.elapsed().ok());
        since.is_some_and(|since| since > Duration::from_secs(3))
    });
    orderer.kill();
    orderer.start();
    assert_eq!(read(&ada, "b"), "from the other\n");
}

#[test]
fn status_names_devices_and_how_far_they_agree() {
    let (_orderer, ada) = founded(&[]);
    let _laptop = joined(&ada, "ada");
    let status = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(status.field("online"), true);
    assert_eq!(status.field("differing"), 0);
    assert_eq!(status.records("device").len(), 2);
    let shown = ada.run(&["share", "status", "notes"]).ends(0);
    assert!(shown.out.contains("(this device)"), "{}", shown.out);
}

#[test]
fn status_without_the_server_is_what_this_device_knows() {
    let (mut orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    let before = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(before.field("state"), "connected");
    orderer.stop();
    let alone = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(alone.field("online"), false);
    assert_eq!(alone.field("state"), "offline");
    assert!(alone.field("why").is_string());
    for field in ["as_of", "size", "devices"] {
        assert_eq!(alone.field(field), before.field(field), "{field}");
    }
    assert_eq!(alone.records("device").len(), 2);
    assert!(alone.err.contains("warning: the server cannot be reached"));
    let as_of = before.field("as_of").as_str().unwrap().to_owned();
    let shown = ada.run(&["share", "status", "notes"]).ends(0);
    assert!(
        shown
            .out
            .contains(&format!("as of     {as_of}, by the server's clock\n"))
    );
    assert!(shown.out.contains("no connection"), "{}", shown.out);
    // Two people can compare without the server, too.
    let text = ada.run(&["share", "compare", "notes"]).ends(0).out;
    std::fs::write(laptop.path("seen"), text).unwrap();
    let compared = laptop.run(&["share", "compare", "notes", "seen", "--deadline", "1s"]);
    assert!(matches!(compared.code, 0 | 30), "{}", compared.err);
    let text = laptop.run(&["share", "compare", "notes"]).ends(0).out;
    std::fs::write(ada.path("seen"), text).unwrap();
    ada.run(&["share", "compare", "notes", "seen"]).ends(0);
    // A trouble that is worse than an absent server decides the exit code.
    orderer.start();
    ada.run(&["share", "device", "remove", "notes", "1"])
        .ends(0);
    let removed = laptop.run(&["--json", "share", "status", "notes"]).ends(23);
    assert_eq!(removed.records("device").len(), 2);
    assert!(removed.field("size").as_u64() > Some(0));
}

/// Two commands of one device at one time take turns.
#[test]
fn commands_of_one_device_take_turns() {
    let (_orderer, ada) = founded(&[]);
    let names = ["a", "b", "c", "d"];
    let begin = |name: &&str| {
        write(&ada, name, name);
        let mut command: Command = ada.command(&["put", name, "notes"]);
        command.stderr(Stdio::inherit()).spawn().unwrap()
    };
    let started: Vec<_> = names.iter().map(begin).collect();
    for mut child in started {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(ada.run(&["ls", "notes"]).ends(0).out, "a\nb\nc\nd\n");
}

#[test]
fn invitation_waits_while_other_commands_run_and_the_server_starts_again() {
    let (mut orderer, ada) = founded(&[]);
    let invite = ["--json", "share", "invite", "notes", "--wait", "100s"];
    let mut inviting = Talk::begin(&mut ada.command(&invite));
    let line = inviting.record("invitation", "line");
    for name in ["a", "b"] {
        write(&ada, name, name);
        ada.run(&["put", name, "notes"]).ends(0);
    }
    orderer.kill();
    orderer.start();
    ada.run(&["ls", "notes"]).ends(0);
    let laptop = Home::new();
    let join = ["--json", "share", "join", &line, "--wait", "100s"];
    let mut joining = Talk::begin(&mut laptop.command(&join));
    let words = joining.record("words", "words");
    inviting.end().ends(0);
    ada.run(&["share", "device", "add", "notes", &words, "--user", "ada"])
        .ends(0);
    joining.end().ends(0);
    assert_eq!(read(&laptop, "a"), "a");
}

#[test]
fn damaged_log_of_a_server_is_named_by_the_start_and_by_verify() {
    let (mut orderer, ada) = founded(&[]);
    for name in ["one", "two"] {
        put(&ada, name, "content\n");
    }
    orderer.stop();
    let whole = orderer.home.run(&["--json", "verify", "repo"]).ends(0);
    assert_eq!(whole.field("damages"), 0);
    assert!(whole.field("entries").as_u64().unwrap() >= 2);
    let name = "repo/leaves/0000000000000000-0000000000000001";
    std::fs::write(orderer.home.path(name), "no leaves").unwrap();
    let told = orderer.home.run(&["verify", "repo"]).ends(20);
    assert!(told.out.contains(name), "{}", told.out);
    let serve = [
        "serve",
        "repo",
        "--orderer-key",
        "key",
        "--shared",
        "127.0.0.1:0",
    ];
    let told = orderer.home.run(&serve).ends(20);
    assert!(told.err.contains("bulla verify DIR"), "{}", told.err);
    std::fs::remove_file(orderer.home.path(name)).unwrap();
    orderer.home.run(&["verify", "repo"]).ends(0);
    orderer.start();
    put(&ada, "three", "content\n");
}
