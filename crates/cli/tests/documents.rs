//! Every command line in the documents that is marked to be run is run, in order, in an empty
//! directory with the built binary. A document that no longer tells the truth fails here.
//!
//! A block opens with three backticks and `sh run`; `fails=N` expects that exit code of its last
//! command; `mount` marks a block that needs /dev/fuse, `nginx` one that needs that. `$VOLUME` is what
//! `publish` printed. A block of any language with `file=NAME` is written into that file.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use support::{Home, skipped};

struct Block {
    fails: i32,
    mounts: bool,
    nginx: bool,
    /// Written there instead of run.
    file: Option<String>,
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
        } else if let Some(marks) = line.strip_prefix("```") {
            let value = |name: &str| marks.split(' ').find_map(|mark| mark.strip_prefix(name));
            if !marks.starts_with("sh run") && value("file=").is_none() {
                continue;
            }
            let marked = |name| marks.split(' ').any(|mark| mark == name);
            open = Some(Block {
                fails: value("fails=").map_or(0, |code| code.parse().expect("a number")),
                mounts: marked("mount"),
                nginx: marked("nginx"),
                file: value("file=").map(str::to_owned),
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
        if block.nginx && !Path::new("/usr/sbin/nginx").exists() {
            skipped("nginx in a document", "nginx is not installed");
            continue;
        }
        if let Some(name) = &block.file {
            let text = block.lines.join("\n");
            script.push_str(&format!(
                "cat >{name} <<'END OF FILE'\n{text}\nEND OF FILE\n"
            ));
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

/// Runs what is marked in a document, on ports that are free on this machine.
fn run(document: &str, least_blocks: usize, ports: &[&str]) {
    let blocks = blocks(document);
    assert!(
        blocks.len() >= least_blocks,
        "the document has lost its tour"
    );
    let can_mount = Path::new("/dev/fuse").exists();
    let mut script = script(&blocks, can_mount);
    let mut taken = Vec::new();
    for port in ports {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        script = script.replace(port, &free.local_addr().unwrap().port().to_string());
        taken.push(free);
    }
    drop(taken);
    let home = Home::new();
    // A web server that root starts reads as somebody else.
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(home.path(""), everybody).unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_bulla")).parent().unwrap();
    let path = format!(
        "{}:{}:/usr/sbin",
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
fn the_command_lines_of_the_readme_run() {
    run(include_str!("../../../README.md"), 5, &["28552"]);
}

#[test]
fn the_command_lines_about_static_hosting_run() {
    let document = include_str!("../../../docs/operations/static-hosting.md");
    run(document, 4, &["28552", "28580", "28590"]);
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
