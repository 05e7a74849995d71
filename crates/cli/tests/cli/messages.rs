//! What the binary tells people: one lie once, log lines only when somebody asks, lines that fit.

use crate::support::{Home, at_terminal, copy, damage_largest, skipped};

#[test]
fn one_lie_is_told_once() {
    let home = Home::new();
    let volume = home.published();
    copy(&home.path("repo"), &home.path("bad"));
    damage_largest(&home.path("bad/segments"));
    let bad = home.source(&volume, "bad");
    let told = home.run(&["verify", &bad]).ends(20).err;
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    assert!(lines[0].starts_with("error: sub/deep/big: "), "{told}");
    assert!(lines[1].starts_with("hint: "), "{told}");
    // Log lines are for those who ask for them.
    let logged = home.run(&["-v", "verify", &bad]).ends(20).err;
    assert!(logged.contains("ERROR wrong block"), "{logged}");
    let mut command = home.command(&["verify", &bad]);
    let logged = command.env("BULLA_LOG", "error").output().unwrap();
    let logged = String::from_utf8(logged.stderr).unwrap();
    assert!(logged.contains("ERROR wrong block"), "{logged}");
    // A lie that an honest mirror makes good is a warning.
    let masked = home.run(&["pull", &bad, "replica", "--mirror", "repo"]);
    let masked = masked.ends(0).err;
    assert_eq!(masked.lines().count(), 1, "once: {masked}");
    assert!(
        masked.starts_with("warning: gives wrong blocks (replica "),
        "{masked}"
    );
    let quiet = ["-q", "pull", &bad, "second", "--mirror", "repo"];
    assert_eq!(home.run(&quiet).ends(0).err, masked);
}

#[test]
fn publication_without_changes_says_so() {
    let home = Home::new();
    home.published();
    let publish = ["publish", "tree", "repo", "--key", "key"];
    let same = home.run(&publish).ends(0).err;
    assert!(same.contains("Nothing has changed"), "{same}");
    std::fs::write(home.path("tree/new"), b"new").unwrap();
    let new = home.run(&publish).ends(0).err;
    assert!(!new.contains("Nothing has changed"), "{new}");
}

#[test]
fn messages_on_a_terminal_have_at_most_100_columns() {
    let home = Home::new();
    let volume = home.published();
    let wide = |shown: &str| shown.lines().map(|line| line.chars().count()).max();
    let refused = home.run(&["ls", "repo"]).ends(2);
    assert!(wide(&refused.err) > Some(200), "one line for programs");
    let Some(shown) = at_terminal(home.command(&["ls", "repo"]).env("NO_COLOR", "1"), "") else {
        return skipped("messages on a terminal", "there is no script(1)");
    };
    assert!(
        shown.contains("hint: the location claims the volume id"),
        "{shown}"
    );
    assert!(
        shown.contains(&format!("{volume}@repo")),
        "ids are whole: {shown}"
    );
    assert!(wide(&shown) <= Some(100), "{shown}");
}
