//! `bulla share conflicts`: copies of what two devices wrote at the same time are listed and settled.

use std::fs;

use crate::shared_lab::founded;
use crate::support::{Home, Ran};

const PLAN: &str = "trips/plan (conflict device 0 2026-11-23)";
const GONE: &str = "gone (conflict device 7 2026-01-02) 3";
const LIST: &str = "list (conflict device 0 2026-11-24)";

fn put(home: &Home, content: &str, path: &str) {
    fs::write(home.path("content"), content).unwrap();
    home.run(&["put", "content", "notes", path]).ends(0);
}

fn cat(home: &Home, path: &str) -> Ran {
    home.run(&["cat", "notes", path])
}

fn paths(listed: &Ran) -> Vec<String> {
    let records = listed.records("conflict");
    let path = |record: &serde_json::Value| record["path"].as_str().unwrap().to_owned();
    records.iter().map(path).collect()
}

#[test]
fn copies_are_listed_with_their_files_and_settled_in_three_ways() {
    let (_orderer, ada) = founded(&[]);
    ada.run(&["mkdir", "notes", "trips"]).ends(0);
    for (content, path) in [
        ("theirs\n", "trips/plan"),
        ("mine, and longer\n", PLAN),
        ("nothing is there\n", GONE),
        ("a\n", "list"),
        ("b\n", LIST),
        ("x\n", "list (conflict of interest)"),
    ] {
        put(&ada, content, path);
    }
    ada.run(&["mkdir", "notes", "d (conflict device 0 2026-11-24)"])
        .ends(0);
    let list = || ada.run(&["--json", "share", "conflicts", "notes"]).ends(0);
    let listed = list();
    assert_eq!(listed.field("copies"), 3, "{}", listed.out);
    assert_eq!(paths(&listed), [GONE, LIST, PLAN]);
    let records = listed.records("conflict");
    assert_eq!(records[2]["file"], "trips/plan");
    assert_eq!(
        (
            records[2]["bytes"].as_u64(),
            records[2]["file_bytes"].as_u64()
        ),
        (Some(17), Some(7))
    );
    assert_eq!(records[2]["date"], "2026-11-23");
    assert_eq!(records[2]["whose"].as_str().unwrap(), "ada");
    assert!(records[0]["file_bytes"].is_null());
    let told = ada.run(&["share", "conflicts", "notes", "trips"]).ends(0);
    assert!(
        told.out
            .contains("17 bytes by ada, 2026-11-23; of trips/plan, 7 bytes"),
        "{}",
        told.out
    );
    assert!(!told.out.contains("list"), "{}", told.out);

    // A path that is no copy is refused, and nothing changes.
    let take = |which: &str, paths: &[&str]| {
        ada.run(&[&["share", "conflicts", "notes", "--take", which], paths].concat())
    };
    let refused = take("copy", &[PLAN, "list"]).ends(2);
    assert!(
        refused.err.contains("list is no conflict copy"),
        "{}",
        refused.err
    );
    take("copy", &["list (conflict of interest)"]).ends(2);
    take("copy", &["d (conflict device 0 2026-11-24)"]).ends(2);
    take("copy", &["never (conflict device 0 2026-11-24)"]).ends(10);
    ada.run(&["share", "conflicts", "notes", "--take", "copy"])
        .ends(2);
    assert_eq!(list().field("copies"), 3);

    take("copy", &[PLAN]).ends(0);
    assert_eq!(cat(&ada, "trips/plan").ends(0).out, "mine, and longer\n");
    take("both", &[GONE]).ends(0);
    assert_eq!(
        cat(&ada, "gone (device 7 2026-01-02)").ends(0).out,
        "nothing is there\n"
    );
    take("file", &[LIST]).ends(0);
    assert_eq!(cat(&ada, "list").ends(0).out, "a\n");
    cat(&ada, LIST).ends(10);
    assert_eq!(list().field("copies"), 0);
}

#[test]
fn copy_that_stays_replaces_nothing() {
    let (_orderer, ada) = founded(&[]);
    put(&ada, "copy\n", LIST);
    put(&ada, "kept earlier\n", "list (device 0 2026-11-24)");
    let refused = ada.run(&["share", "conflicts", "notes", "--take", "both", LIST]);
    refused.ends(1);
    assert_eq!(cat(&ada, LIST).ends(0).out, "copy\n");
    let kept = cat(&ada, "list (device 0 2026-11-24)").ends(0);
    assert_eq!(kept.out, "kept earlier\n");
}
