//! Programs that write: fsx, fio, git and SQLite on a real mount, and data after `fsync`.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use sim::fsx::{self, FsxOptions, Mapper};

use crate::fixture::noise;
use crate::writable::WritableMount;

/// Runs a shell script with `$1` as the mount and `$2` as a directory elsewhere.
fn sh(script: &str, mount: &Path, elsewhere: &Path) -> String {
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script, "sh"])
        .args([mount, elsewhere])
        .env("HOME", elsewhere)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{told}{complaints}");
    told
}

fn operations() -> u64 {
    if std::env::var_os("BULLA_LONG").is_some() {
        200_000
    } else {
        6_000
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fsx_finds_no_difference_with_and_without_the_writeback_cache() {
    for (seed, m) in (1..).zip(WritableMount::both().await) {
        let options = FsxOptions::new(seed, operations());
        fsx::run(&m.path("file"), &options, |_| {}).unwrap();
        let kept = fs::read(m.path("file")).unwrap();
        File::open(m.path("file")).unwrap().sync_all().unwrap();
        assert!(m.fs.content("file").unwrap() == kept);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fsx_notices_a_byte_that_changes_in_the_mount() {
    let m = WritableMount::plain().await;
    let path = m.path("file");
    let flip = |number: u64| {
        if number == 100 {
            let file = OpenOptions::new().read(true).write(true).open(&path);
            let file = file.unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, 0).unwrap();
            file.write_all_at(&[!byte[0]], 0).unwrap();
        }
    };
    let told = fsx::run(&path, &FsxOptions::new(4, 2000), flip).unwrap_err();
    assert!(told.contains("differs"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fio_verifies_what_it_wrote() {
    for m in WritableMount::both().await {
        let elsewhere = tempfile::tempdir().unwrap();
        let script = "cd \"$2\" && fio --output=report --directory=\"$1\" --size=8m --bs=4k-64k \
            --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=1 --fallocate=none \
            --name=random --rw=randwrite --ioengine=psync --fsync=64 \
            --name=mixed --rw=randrw --ioengine=psync --end_fsync=1 \
            --name=mapped --rw=randwrite --ioengine=mmap";
        sh(script, m.root(), elsewhere.path());
        // The control: fio finds a byte that was changed meanwhile when it verifies again.
        let name = m.path("random.0.0");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(name)
            .unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 5000).unwrap();
        file.write_all_at(&[!byte[0]], 5000).unwrap();
        let again = "cd \"$2\" && ! fio --output=report --directory=\"$1\" --size=8m --bs=4k-64k \
            --verify=crc32c --verify_only --randrepeat=1 --fallocate=none \
            --name=random --rw=randwrite --ioengine=psync";
        sh(again, m.root(), elsewhere.path());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn git_clones_commits_and_checks_out() {
    let elsewhere = tempfile::tempdir().unwrap();
    let sources = elsewhere.path().join("sources");
    fs::create_dir(&sources).unwrap();
    for i in 0..120 {
        let directory = sources.join(format!("d{}", i % 7));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("f{i}")), noise(i, 2000)).unwrap();
    }
    let origin = "cd \"$2/sources\" && git init -q -b main . && \
        git config --global user.name n && git config --global user.email e@example.org && \
        git config --global gc.auto 0 && for i in 1 2 3 4 5 6; do \
        echo $i >> d$i/f$i && git add -A && git commit -qm \"commit $i\"; done";
    sh(origin, elsewhere.path(), elsewhere.path());
    for m in WritableMount::both().await {
        let work = "cd \"$1\" && git clone -q --no-local \"$2/sources\" clone && cd clone && \
            git fsck --strict --no-progress && git status --porcelain && \
            git checkout -q HEAD~3 && git checkout -q main && git mv d1 moved && \
            echo new > d2/new && git add -A && git commit -qm change && \
            git repack -q -a -d && git gc -q --prune=now && git fsck --strict --no-progress && \
            git status --porcelain && git worktree add -q ../other HEAD~1 && \
            diff -r --exclude=.git \"$2/sources\" ../other";
        assert_eq!(sh(work, m.root(), elsewhere.path()), "");
        let log = sh(
            "git -C \"$1/clone\" log --format=%s",
            m.root(),
            elsewhere.path(),
        );
        assert_eq!(log.lines().count(), 7);
        sh(
            "rm -rf \"$1/clone\" \"$1/other\"",
            m.root(),
            elsewhere.path(),
        );
        assert_eq!(fs::read_dir(m.root()).unwrap().count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_processes_count_together_in_both_journal_modes() {
    for m in WritableMount::both().await {
        let elsewhere = tempfile::tempdir().unwrap();
        for mode in ["delete", "wal"] {
            let script = format!(
                "db=\"$1/{mode}.db\"; sqlite3 \"$db\" 'PRAGMA journal_mode={mode}; \
                 CREATE TABLE c(n INTEGER); INSERT INTO c VALUES(0);' > /dev/null; \
                 count() {{ for i in $(seq 25); do sqlite3 -cmd '.timeout 60000' \"$db\" \
                 'BEGIN IMMEDIATE; UPDATE c SET n = n + 1; COMMIT;'; done; }}; \
                 count & one=$!; count & two=$!; count; wait $one; wait $two; \
                 sqlite3 \"$db\" 'SELECT n FROM c; PRAGMA integrity_check;'"
            );
            assert_eq!(
                sh(&script, m.root(), elsewhere.path()),
                "75\nok\n",
                "{mode}"
            );
        }
        assert!(m.fs.fsyncs() > 0, "SQLite makes its commits durable");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_fsync_has_reached_the_file_system() {
    for m in WritableMount::both().await {
        let mut file = File::create(m.path("f")).unwrap();
        let content = noise(8, 300_000);
        file.write_all(&content).unwrap();
        let before = m.fs.fsyncs();
        file.sync_all().unwrap();
        assert!(m.fs.content("f").unwrap() == content);
        assert_eq!(m.fs.fsyncs(), before + 1);
        // Without fsync, closing is enough for all data to reach the file system.
        file.write_all(&content).unwrap();
        drop(file);
        assert!(m.fs.content("f").unwrap() == content.repeat(2));
        let directory = File::open(m.root()).unwrap();
        directory.sync_all().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_mappings_of_two_processes_and_reads_agree() {
    for m in WritableMount::both().await {
        let path = m.path("mapped");
        fs::write(&path, vec![0; 50_000]).unwrap();
        let [mut a, mut b] = [(); 2].map(|()| Mapper::start(&path).unwrap());
        for round in 0..40u64 {
            // Writes at odd offsets are not followed by msync; the other process sees them too.
            let start = round * 1009 + 1;
            let data = noise(round, 900);
            a.write(start, &data).unwrap();
            assert!(b.read(start, 900).unwrap() == data, "round {round}");
            let mut read = vec![0; 900];
            let file = File::open(&path).unwrap();
            file.read_exact_at(&mut read, start).unwrap();
            assert!(read == data, "round {round}");
            std::mem::swap(&mut a, &mut b);
        }
        let expected = fs::read(&path).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        assert!(m.fs.content("mapped").unwrap() == expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_writers_append_without_losing_a_line() {
    const LINES: usize = 1500;
    for m in WritableMount::both().await {
        let elsewhere = tempfile::tempdir().unwrap();
        let script = format!(
            "write() {{ exec >> \"$1/log\"; for i in $(seq {LINES}); do echo \"$2 $i\"; done; }}; \
             (write \"$1\" a) & one=$!; (write \"$1\" b) & two=$!; wait $one; wait $two"
        );
        sh(&script, m.root(), elsewhere.path());
        let log = fs::read_to_string(m.path("log")).unwrap();
        for writer in ["a", "b"] {
            let own = log.lines().filter(|line| line.starts_with(writer));
            let expected: Vec<_> = (1..=LINES).map(|i| format!("{writer} {i}")).collect();
            assert!(own.eq(expected), "{writer}");
        }
        assert_eq!(log.lines().count(), 2 * LINES);
    }
}
