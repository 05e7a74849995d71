//! Runs every marked command line of the documents, in order, in an empty directory, with the built binary. A
//! document with wrong commands fails here.
//!
//! A block opens with three backticks and `sh run`. `fails=N` expects this exit code of its last command.
//! `mount` marks a block that needs /dev/fuse, `loops` one that needs root and loop devices, `nginx` one that needs
//! nginx, `needs=PROGRAM,PROGRAM` one that needs other programs. `$VOLUME` is the volume id that `publish` printed last. A block of any language with
//! `file=NAME` is written into that file. `forking-server` is the tool of `sim`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lab::has_loops;
use crate::shared_lab::forking_server_function;
use crate::support::{Home, skipped};

struct Block {
    fails: i32,
    mounts: bool,
    loops: bool,
    /// Programs that the block needs.
    needs: Vec<String>,
    /// The file to write instead of running the block.
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
                loops: marked("loops"),
                needs: value("needs=")
                    .or(marked("nginx").then_some("nginx"))
                    .map(|names| names.split(',').map(str::to_owned).collect())
                    .unwrap_or_default(),
                file: value("file=").map(str::to_owned),
                lines: Vec::new(),
            });
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// Appended to a command: shows its output, sets `VOLUME`, and keeps its exit code.
const TELLS: &str = " >.told; CODE=$?; cat .told\n\
    TOLD=$(awk '$1 == \"volume\" { print $2 }' .told); VOLUME=${TOLD:-$VOLUME}; (exit $CODE)";

fn is_installed(program: &str) -> bool {
    let places = ["/usr/bin", "/usr/sbin", "/bin", "/usr/local/bin"];
    places
        .iter()
        .any(|place| Path::new(place).join(program).exists())
}

/// Ports in documents; each is replaced by one that is free on this machine.
const PORTS: std::ops::Range<u16> = 28550..28600;

/// Lines of a script that wait, for at most a minute, until the program that `line` starts listens on its ports, which
/// are in the line or in a file that it names, or has written to its file.
fn wait_for(line: &str, blocks: &[Block]) -> String {
    if let Some((_, file)) = line.trim_end_matches(" &").split_once(" > ") {
        return format!("for _ in $(seq 1200); do [ -s {file} ] && break; sleep 0.05; done\n");
    }
    let names = |block: &&Block| block.file.as_ref().is_some_and(|file| line.contains(file));
    let named = blocks.iter().filter(names).flat_map(|block| &block.lines);
    let lines = named.map(String::as_str).chain([line]);
    let places = lines.flat_map(|line| line.split("127.0.0.1:").skip(1));
    let digits = |rest: &str| -> String { rest.chars().take_while(char::is_ascii_digit).collect() };
    let ports: Vec<String> = places.map(digits).collect();
    assert!(!ports.is_empty(), "{line:?} has no ports and no file");
    let connects = "(exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null && break";
    let ports = ports.join(" ");
    format!("for port in {ports}; do for _ in $(seq 1200); do {connects}; sleep 0.05; done; done\n")
}

/// The script of a document. It checks the exit code of each command and ends the servers.
fn script(blocks: &[Block], can_mount: bool) -> String {
    let mut script = "set -u\nVOLUME=\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\n".to_owned();
    for block in blocks {
        if block.mounts && !can_mount {
            skipped("a mount in a document", "no /dev/fuse");
            continue;
        }
        if block.loops && !has_loops() {
            continue;
        }
        if let Some(program) = block.needs.iter().find(|it| !is_installed(it)) {
            skipped("a document", &format!("{program} is not installed"));
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
            // A reader of the document would copy the volume id from this output.
            let tells = line.starts_with("bulla publish") || line.starts_with("bulla sign");
            let end = if tells { TELLS } else { "" };
            // What a person waits for takes longer on a busy machine.
            let slower = if line == "sleep 2" { "sleep 8" } else { line };
            script.push_str(&format!("{slower}{end}\n"));
            let last = block.lines.last() == Some(line);
            let wanted = if last { block.fails } else { 0 };
            if line.ends_with('&') {
                script.push_str(&wait_for(line, blocks));
            } else {
                let complaint = format!("{line:?} ended with another code than {wanted}");
                script.push_str(&format!(
                    "[ $? -eq {wanted} ] || {{ echo '{complaint}' >&2; exit 1; }}\n"
                ));
            }
        }
    }
    script
}

/// Runs the marked blocks of a document.
fn run(name: &str, least_blocks: usize) {
    let document = std::fs::read_to_string(root().join(name)).unwrap();
    let blocks = blocks(&document);
    assert!(
        blocks.len() >= least_blocks,
        "the document has fewer marked blocks than expected"
    );
    let can_mount = Path::new("/dev/fuse").exists();
    let mut script = forking_server_function() + &script(&blocks, can_mount);
    for port in PORTS.map(|port| port.to_string()) {
        if script.contains(&port) {
            script = script.replace(&port, &sim::port::own().to_string());
        }
    }
    let home = Home::new();
    // A web server that root starts reads as another user.
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(home.path(""), everybody).unwrap();
    // The program alone: beside it lie fuzz targets, and one of them is called `head`.
    let bin = tempfile::tempdir().unwrap();
    std::fs::set_permissions(bin.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bulla"), bin.path().join("bulla")).unwrap();
    let path = format!(
        "{}:{}:/usr/sbin",
        bin.path().display(),
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
    run("README.md", 4);
}

#[test]
fn the_command_lines_of_the_first_steps_run() {
    run("docs/first-steps.md", 8);
}

#[test]
fn the_command_lines_of_the_tour_of_a_shared_volume_run() {
    run("docs/shared-tour.md", 6);
}

#[test]
fn the_command_lines_about_a_disk_for_a_team_run() {
    run("docs/operations/disk-for-a-team.md", 10);
}

#[test]
fn the_command_lines_about_static_hosting_run() {
    run("docs/operations/static-hosting.md", 4);
}

#[test]
fn the_command_lines_of_the_tour_run() {
    run("docs/tour.md", 8);
}

#[test]
fn the_command_lines_about_mirrors_run() {
    run("docs/operations/mirrors.md", 1);
}

#[test]
fn the_command_lines_about_readers_far_away_run() {
    run("docs/operations/far-away.md", 3);
}

#[test]
fn the_command_lines_about_monitoring_run() {
    run("docs/operations/monitoring.md", 4);
}

#[test]
fn the_command_lines_about_names_run() {
    run("docs/operations/names.md", 5);
}

#[test]
fn the_command_lines_about_keys_run() {
    run("docs/operations/keys.md", 1);
}

#[test]
fn the_command_lines_about_keys_in_tokens_and_agents_run() {
    run("docs/operations/keys-elsewhere.md", 3);
}

#[test]
fn the_command_lines_about_history_and_proofs_run() {
    run("docs/operations/history-and-proofs.md", 9);
}

#[test]
fn the_command_lines_about_keys_over_the_years_run() {
    run("docs/operations/keys-over-the-years.md", 14);
}

#[test]
fn the_command_lines_about_witnesses_run() {
    run("docs/operations/witnesses.md", 11);
}

#[test]
fn the_command_lines_about_forks_run() {
    run("docs/operations/forks.md", 3);
}

#[test]
fn the_command_lines_about_signing_offline_run() {
    run("docs/operations/offline-signing.md", 6);
}

#[test]
fn the_command_lines_about_protected_devices_run() {
    run("docs/operations/protect.md", 12);
}

#[test]
fn the_command_lines_about_a_fork_of_a_shared_volume_run() {
    run("docs/operations/shared-forks.md", 7);
}

#[test]
fn the_command_lines_about_shared_volumes_run() {
    run("docs/operations/shared-volumes.md", 9);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A marked document without a test above would never be run.
#[test]
fn every_document_with_marked_command_lines_is_run() {
    let own = include_str!("documents.rs");
    let mut pending = vec![root().join("docs"), root().join("README.md")];
    let mut marked = 0;
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(
                std::fs::read_dir(path)
                    .unwrap()
                    .map(|it| it.unwrap().path()),
            );
        } else if path.extension().is_some_and(|ending| ending == "md") {
            let text = std::fs::read_to_string(&path).unwrap();
            if text.contains("\n```sh run") {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap();
                assert!(
                    own.contains(&format!("run(\"{name}\", ")),
                    "{name} is not run"
                );
                marked += 1;
            }
        }
    }
    assert!(marked >= 7, "only {marked} documents are found");
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
