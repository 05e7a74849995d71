//! Programs that people use NBD with: libnbd's nbdinfo and nbdcopy, qemu-img and qemu-io, fio.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use protect::nbd::{Address, Limits};
use sim::block::{Call, MemoryBlock};
use sim::random::noise;

use super::{MIB, Served};

const DEADLINE_S: &str = "600";

/// Whether the program can be used; otherwise a line says what is skipped.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    if !found {
        // Written directly, because the test harness hides the output of a test that passes.
        let line = format!("SKIPPED nbd with {program}: it is not installed\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    found
}

/// Runs the program until it ends or its time is up. Returns whether it succeeded, and what it printed.
fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new("timeout");
    command
        .args(["-k", "5", DEADLINE_S, program])
        .args(arguments);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.success(), text)
}

fn succeeds(program: &str, arguments: &[&str]) -> String {
    let (success, text) = run(program, arguments);
    assert!(success, "{program} {arguments:?}: {text}");
    text
}

fn uri(served: &Served) -> String {
    match served.server.address() {
        Address::Unix(path) => format!("nbd+unix:///?socket={}", path.display()),
        Address::Tcp(address) => format!("nbd://{address}"),
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> String {
    std::fs::write(path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn nbdinfo_shows_what_the_server_can_do() {
    if !has("nbdinfo") {
        return;
    }
    let served = Served::over(MemoryBlock::new(64 * MIB, 4096), Limits::default());
    let text = succeeds("nbdinfo", &["--json", &uri(&served)]);
    for part in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"export-size\": 67108864",
        "\"is_read_only\": false",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"can_multi_conn\": true",
        "\"block_size_minimum\": 4096",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 4194304",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let list = succeeds("nbdinfo", &["--list", &uri(&served)]);
    assert!(list.contains("export=\"\""), "{list}");
    assert_eq!(served.server.totals().cut_off, 0);
}

#[test]
fn nbdcopy_copies_a_disk_in_and_out() {
    if !has("nbdcopy") {
        return;
    }
    let served = Served::new(Limits::default());
    let dir = served.dir.path();
    let mut disk = noise(1, 40 * MIB as usize);
    disk.resize(64 * MIB as usize, 0);
    let from = write_file(&dir.join("from"), &disk);
    let to = dir.join("to");
    // One connection for each processor, at most four, and 64 requests of 256 KiB on each.
    succeeds("nbdcopy", &["--flush", &from, &uri(&served)]);
    assert!(served.server.totals().accepted >= 1);
    assert!(served.block.flushed(0..64 * MIB) == disk);
    succeeds("nbdcopy", &[&uri(&served), to.to_str().unwrap()]);
    assert!(std::fs::read(to).unwrap() == disk);
    assert_eq!(served.server.totals().cut_off, 0);
}

#[test]
fn qemu_img_converts_and_compares() {
    if !has("qemu-img") {
        return;
    }
    let served = Served::over(MemoryBlock::new(64 * MIB, 4096), Limits::default());
    let dir = served.dir.path();
    let mut disk = noise(2, 10 * MIB as usize);
    disk.resize(64 * MIB as usize, 0);
    let from = write_file(&dir.join("from"), &disk);
    let to = format!("{}/to.qcow2", dir.display());
    let uri = uri(&served);
    succeeds(
        "qemu-img",
        &["convert", "-n", "-f", "raw", "-O", "raw", &from, &uri],
    );
    succeeds(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &from, &uri],
    );
    succeeds(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "qcow2", &uri, &to],
    );
    succeeds(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "qcow2", &from, &to],
    );
    assert!(served.block.content(0..64 * MIB) == disk);
    assert_eq!(served.server.totals().cut_off, 0);
}

#[test]
fn qemu_io_writes_trims_zeroes_and_flushes() {
    if !has("qemu-io") {
        return;
    }
    let served = Served::new(Limits::default());
    let uri = uri(&served);
    let qemu_io = |commands: &[&str]| {
        let mut arguments = vec!["-f", "raw"];
        arguments.extend(commands.iter().flat_map(|command| ["-c", command]));
        arguments.push(&uri);
        succeeds("qemu-io", &arguments)
    };
    qemu_io(&[
        "aio_write -P 1 0 1M",
        "aio_write -P 2 1M 1M",
        "aio_write -P 3 2M 1M",
        "aio_flush",
        "write -f -P 4 3M 512",
        "read -P 1 0 1M",
        "read -P 2 1M 1M",
        "read -P 4 3M 512",
        "discard 0 512k",
        "write -z -u 512k 512k",
        "write -z 1M 4k",
        "read -P 0 0 1M",
        "read -P 0 1M 4k",
        "flush",
    ]);
    assert_eq!(served.block.flushed(0..MIB), vec![0; MIB as usize]);
    assert_eq!(
        served.block.flushed(2 * MIB..3 * MIB),
        vec![3; MIB as usize]
    );
    let calls = served.block.calls();
    assert!(calls.contains(&Call::Zero {
        offset: 0,
        bytes: MIB / 2
    }));
    assert_eq!(served.server.totals().cut_off, 0);
}

#[test]
fn qemu_io_is_told_of_a_block_that_cannot_be_had() {
    if !has("qemu-io") {
        return;
    }
    let served = Served::new(Limits::default());
    let bad = |call| matches!(call, Call::Read { offset, .. } if offset == MIB);
    served
        .block
        .fail(bad, u64::MAX, || protect::BlockError::Integrity {
            block: 256,
            offset: MIB,
        });
    let uri = uri(&served);
    let commands = ["-c", "read 1M 4k", "-c", "read 0 4k"];
    let (success, text) = run(
        "qemu-io",
        &[&["-f", "raw"], &commands[..], &[&uri]].concat(),
    );
    assert!(!success && text.contains("Input/output error"), "{text}");
    assert!(text.contains("read 4096/4096 bytes at offset 0"), "{text}");
}

#[test]
fn fio_verifies_what_it_wrote_at_random() {
    if !has("fio") {
        return;
    }
    if !succeeds("fio", &["--enghelp"]).contains("nbd") {
        let _ = std::io::stderr().write_all(b"SKIPPED nbd with fio: built without its engine\n");
        return;
    }
    let served = Served::new(Limits::default());
    let uri = format!("--uri={}", uri(&served));
    let arguments = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=randrw",
        "--bsrange=512-64k",
        "--blockalign=512",
        "--size=16m",
        "--io_size=32m",
        "--iodepth=32",
        "--fsync=50",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--numjobs=2",
        "--offset_increment=32m",
    ];
    succeeds("fio", &arguments);
    assert_eq!(served.server.totals().cut_off, 0);
    assert!(served.block.calls().contains(&Call::Flush));
}
