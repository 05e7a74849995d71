//! `--wait`: commands that write a repository wait for its lock, and say that they do.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::Home;

#[test]
fn commands_wait_for_the_lock_of_a_repository() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    home.run(&["pull", &source, "copy"]).ends(0);
    let publish = ["publish", "tree", "repo", "--key", "key"];
    let renew = ["renew", "repo", "--key", "key"];
    let prune = ["prune", "repo"];
    let pull = ["pull", &source, "copy"];
    for (args, repo) in [
        (&publish[..], "repo"),
        (&renew, "repo"),
        (&prune, "repo"),
        (&pull, "copy"),
    ] {
        let lock = File::open(home.path(repo).join("lock")).unwrap();
        lock.try_lock().unwrap();
        let refused = home.run(args).ends(11);
        assert!(refused.err.contains("--wait"), "{}", refused.err);
        let short = home.run(&[args, &["--wait", "120ms"]].concat()).ends(11);
        assert!(short.err.contains("waiting up to"), "{}", short.err);
        let mut command = home.command(&[args, &["--wait", "10m"]].concat());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
        let waits = told.any(|line| line.unwrap().contains("waiting up to"));
        assert!(waits, "{args:?} says that it waits");
        drop(lock);
        assert!(child.wait().unwrap().success(), "{args:?}");
    }
}

#[test]
fn command_that_waits_for_a_lock_ends_at_once_when_it_is_interrupted() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    home.run(&["pull", &source, "copy"]).ends(0);
    for (args, repo) in [
        (&["publish", "tree", "repo", "--key", "key"][..], "repo"),
        (&["pull", &source, "copy"], "copy"),
    ] {
        let lock = File::open(home.path(repo).join("lock")).unwrap();
        lock.try_lock().unwrap();
        let mut command = home.command(&[args, &["--wait", "1m"]].concat());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(told.any(|line| line.unwrap().contains("waiting up to")));
        let id = child.id().to_string();
        let mut kill = std::process::Command::new("kill");
        assert!(kill.args(["-INT", &id]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{args:?}");
    }
}

#[test]
fn exclude_that_matches_nothing_is_told_and_patterns_come_from_a_file() {
    let home = Home::new();
    home.published();
    let publish = ["--json", "publish", "tree", "repo", "--key", "key"];
    let with = |more: &[&str]| home.run(&[&publish, more].concat());
    let ran = with(&["--exclude", "nothing.o", "--exclude", "b[ij]g"]).ends(0);
    assert!(
        ran.err.contains("`nothing.o` matched nothing"),
        "{}",
        ran.err
    );
    assert!(!ran.err.contains("b[ij]g"), "{}", ran.err);
    assert_eq!(ran.field("unmatched"), serde_json::json!(["nothing.o"]));
    assert_eq!(ran.field("files"), 3);
    // A second pattern for a name that the first one leaves out matches too.
    let ran = with(&["--exclude", "a", "--exclude", "/a", "--dry-run"]).ends(0);
    assert_eq!(ran.field("unmatched"), serde_json::json!([]));
    let text = "# comment\n\n/sub/deep \r\nfor-other-trees\n";
    fs::write(home.path("patterns"), text).unwrap();
    let ran = with(&["--exclude-file", "patterns"]).ends(0);
    assert_eq!(ran.field("unmatched"), serde_json::json!([]));
    assert_eq!(ran.field("directories"), 2);
    for (text, line) in [("ok\n!no\n", "line 2"), ("[x\n", "line 1")] {
        fs::write(home.path("wrong"), text).unwrap();
        let told = with(&["--exclude-file", "wrong"]);
        assert_eq!(told.code, 2, "{}", told.err);
        assert!(told.out.contains(line), "{}", told.out);
    }
    assert_eq!(with(&["--exclude-file", "missing"]).code, 10);
}
