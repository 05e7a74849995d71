//! Every command line in the README that is marked to be run is run, in order, in an empty directory
//! with the built binary. A document that no longer tells the truth fails here.
//!
//! A block opens with three backticks and `sh run`; `fails=N` expects that exit code of its last
//! command; `mount` marks a block that needs /dev/fuse. `$VOLUME` is what `publish` printed.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod support;

use std::path::Path;
use std::process::Command;

use support::{Home, skipped};

struct Block {
    fails: i32,
    mounts: bool,
    lines: Vec<String>,
}

fn blocks(document: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in document.lines() {
        if let Some(block) = &mut open {
            if line == "```" {
                blocks.extend(open.take());
            } else {
                block.lines.push(line.to_owned());
            }
        } else if let Some(marks) = line.strip_prefix("```sh run") {
            let fails = marks
                .split(' ')
                .find_map(|mark| mark.strip_prefix("fails="));
            open = Some(Block {
                fails: fails.map_or(0, |code| code.parse().expect("a number")),
                mounts: marks.contains("mount"),
                lines: Vec::new(),
            });
        }
    }
    assert!(open.is_none(), "a block without end");
    blocks
}

/// The script of a document: each block is checked for its exit code, the server is ended.
fn script(blocks: &[Block], can_mount: bool) -> String {
    let mut script = "set -u\nVOLUME=\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\n".to_owned();
    for block in blocks {
        if block.mounts && !can_mount {
            skipped("a mount in a document", "no /dev/fuse");
            continue;
        }
        for line in &block.lines {
            script.push_str(line);
            script.push('\n');
            let last = block.lines.last() == Some(line);
            let wanted = if last { block.fails } else { 0 };
            if line.ends_with('&') {
                script.push_str("sleep 1\n");
            } else {
                let complaint = format!("{line:?} ended with another code than {wanted}");
                script.push_str(&format!(
                    "[ $? -eq {wanted} ] || {{ echo '{complaint}' >&2; exit 1; }}\n"
                ));
            }
            if line.starts_with("bulla publish") {
                script.push_str("VOLUME=$(bulla --json publish tree repo --key my.key | sed 's/.*\"volume\":\"\\([^\"]*\\)\".*/\\1/')\n");
            }
        }
    }
    script
}

#[test]
fn the_command_lines_of_the_readme_run() {
    let document = include_str!("../../../README.md");
    let blocks = blocks(document);
    assert!(blocks.len() >= 5, "the README has lost its tour");
    // The port of the tour may be taken on this machine.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let can_mount = Path::new("/dev/fuse").exists();
    let home = Home::new();
    let script = script(&blocks, can_mount).replace("28552", &port);
    let bin = Path::new(env!("CARGO_BIN_EXE_bulla")).parent().unwrap();
    let path = format!(
        "{}:{}",
        bin.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let out = Command::new("bash")
        .args(["-c", &script])
        .env_clear()
        .env("PATH", path)
        .env("HOME", home.path(""))
        .env("BULLA_RUNTIME_DIR", home.path("run/bulla"))
        .current_dir(home.path(""))
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}\n{}\n{script}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn a_command_that_fails_is_noticed() {
    let document = "```sh run\ntrue\nfalse\n```\n";
    let script = script(&blocks(document), false);
    let status = Command::new("bash")
        .args(["-c", &script])
        .output()
        .unwrap()
        .status;
    assert!(!status.success());
    let document = "```sh run fails=3\n(exit 3)\n```\n";
    let script = self::script(&blocks(document), false);
    let status = Command::new("bash")
        .args(["-c", &script])
        .output()
        .unwrap()
        .status;
    assert!(status.success());
}
