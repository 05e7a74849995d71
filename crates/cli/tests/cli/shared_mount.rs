//! Shared volumes as a file system: two devices with the real binary, a real server, two real mounts on `/dev/fuse`, and
//! programs that work in them.

use std::fs;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::shared_lab::founded;
use crate::shared_mount_lab::{Mount, can_mount, two_devices};
use crate::support::{Home, wait_until};

/// Runs a program in a directory, and gives what it prints.
pub fn run(directory: &Path, line: &str) -> String {
    let ran = Command::new("sh")
        .args(["-ec", line])
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_AUTHOR_NAME", "ada")
        .env("GIT_AUTHOR_EMAIL", "ada@example.org")
        .env("GIT_COMMITTER_NAME", "ada")
        .env("GIT_COMMITTER_EMAIL", "ada@example.org")
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{line}: {err}");
    String::from_utf8(ran.stdout).unwrap()
}

/// A git repository with a program.
fn repository() -> Home {
    let home = Home::new();
    let r = home.path("r");
    fs::create_dir(&r).unwrap();
    fs::write(r.join("hello.h"), "const char *hello(void);\n").unwrap();
    let body = "#include \"hello.h\"\nconst char *hello(void) { return \"hello\"; }\n";
    fs::write(r.join("hello.c"), body).unwrap();
    let main =
        "#include <stdio.h>\n#include \"hello.h\"\nint main(void) { puts(hello()); return 0; }\n";
    fs::write(r.join("main.c"), main).unwrap();
    let make = "hello: main.o hello.o\n\t$(CC) -o $@ $^\n%.o: %.c hello.h\n\t$(CC) -c $<\n";
    fs::write(r.join("Makefile"), make).unwrap();
    fs::write(r.join(".gitignore"), "*.o\nhello\n").unwrap();
    for i in 0..12 {
        fs::create_dir_all(r.join(format!("d{}", i % 5))).unwrap();
        fs::write(
            r.join(format!("d{}/{i}", i % 5)),
            format!("{i}\n").repeat(i + 1),
        )
        .unwrap();
    }
    run(
        &r,
        "git init -q -b main . && git add . && git commit -qm first",
    );
    home
}

#[test]
fn two_people_work_in_one_git_repository() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    let source = repository();
    let clone = format!(
        "git clone -q --no-hardlinks {} r",
        source.path("r").display()
    );
    run(&a.path(""), &clone);
    run(&a.path("r"), "make -s");
    assert_eq!(run(&a.path("r"), "./hello"), "hello\n");
    // The other device has all of it at once.
    assert_eq!(run(&b.path("r"), "git status --porcelain"), "");
    assert_eq!(run(&b.path("r"), "./hello"), "hello\n");
    run(&b.path("r"), "echo more >> d0/0 && git commit -qam second");
    assert_eq!(run(&a.path("r"), "git log -1 --format=%s"), "second\n");
    assert_eq!(
        run(
            &a.path("r"),
            "git status --porcelain && git fsck --strict && cat d0/0"
        ),
        "0\nmore\n"
    );
    run(
        &a.path("r"),
        "git checkout -q -b other HEAD~1 && git merge -q main && git gc -q && git log --oneline | wc -l",
    );
    assert_eq!(
        run(&b.path("r"), "git rev-parse --abbrev-ref HEAD"),
        "other\n"
    );
    a.end();
    b.end();
    // And the command line sees what the mounts wrote.
    assert_eq!(
        ada.run(&["cat", "notes", "r/d0/0"]).ends(0).out,
        "0\nmore\n"
    );
    ada.run(&["verify", "notes"]).ends(0);
}

#[test]
fn calls_of_programs_are_those_of_posix() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (
        Mount::of(&ada, &["--attr", "0s"]),
        Mount::of(&ben, &["--attr", "0s"]),
    );
    fs::create_dir(a.path("d")).unwrap();
    // O_EXCL is exact.
    let exclusive = |mount: &Mount<'_>| {
        fs::File::options()
            .write(true)
            .create_new(true)
            .open(mount.path("d/lock"))
            .map_err(|error| error.kind())
    };
    let held = exclusive(&a).unwrap();
    assert_eq!(
        exclusive(&b).unwrap_err(),
        std::io::ErrorKind::AlreadyExists
    );
    drop(held);
    fs::remove_file(b.path("d/lock")).unwrap();
    assert!(!a.path("d/lock").exists());
    // Modes, times, links, symbolic links, names.
    fs::write(a.path("d/f"), "content").unwrap();
    fs::set_permissions(a.path("d/f"), fs::Permissions::from_mode(0o751)).unwrap();
    run(
        &a.path("d"),
        "touch -d '2001-02-03 04:05:06.789Z' f && ln f g && ln -s g s && mkfifo p",
    );
    let seen = b.path("d/g").metadata().unwrap();
    assert_eq!(
        (seen.mode() & 0o7777, seen.nlink(), seen.size()),
        (0o751, 2, 7)
    );
    assert_eq!(
        (seen.mtime(), seen.mtime_nsec()),
        (981_173_106, 789_000_000)
    );
    assert_eq!(seen.ino(), a.path("d/f").metadata().unwrap().ino());
    assert_eq!(fs::read_to_string(b.path("d/s")).unwrap(), "content");
    let names = run(&b.path("d"), "ls -1 | tr '\\n' ' '");
    assert_eq!(names, "f g p s ");
    // Directories move, over empty ones only; not below themselves.
    fs::create_dir_all(a.path("x/y/z")).unwrap();
    let refused = fs::rename(a.path("x"), a.path("x/y/w")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
    fs::rename(a.path("x/y"), a.path("d/y")).unwrap();
    assert!(b.path("d/y/z").is_dir());
    let full = fs::remove_dir(b.path("d/y")).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    fs::write(a.path("d/over"), "old").unwrap();
    fs::rename(a.path("d/f"), a.path("d/over")).unwrap();
    assert_eq!(fs::read_to_string(b.path("d/over")).unwrap(), "content");
    // A file without a name lives on for who has it open.
    let mut open = fs::File::options()
        .read(true)
        .write(true)
        .open(a.path("d/over"))
        .unwrap();
    fs::remove_file(a.path("d/over")).unwrap();
    fs::remove_file(a.path("d/g")).unwrap();
    open.write_all(b"CON").unwrap();
    let mut all = String::new();
    open.rewind().unwrap();
    open.read_to_string(&mut all).unwrap();
    assert_eq!(
        (all.as_str(), open.metadata().unwrap().nlink()),
        ("CONtent", 0)
    );
    drop(open);
    // A time that a program sets stays, also if it writes before and closes after.
    let file = fs::File::create(a.path("d/timed")).unwrap();
    (&file).write_all(b"written").unwrap();
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(time).unwrap();
    drop(file);
    assert_eq!(
        b.path("d/timed").metadata().unwrap().modified().unwrap(),
        time
    );
    // Owners are not kept, so nobody is told that they are.
    let refused = std::os::unix::fs::chown(a.path("d/timed"), Some(12_345), None).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    // Copies, by programs that let the kernel copy.
    fs::write(a.path("d/source"), "x".repeat(100_000)).unwrap();
    run(&a.path("d"), "cp source copy && cp -a y y2");
    fs::copy(a.path("d/source"), a.path("d/copy2")).unwrap();
    for copy in ["d/copy", "d/copy2"] {
        assert_eq!(fs::read(b.path(copy)).unwrap().len(), 100_000);
    }
    // The names of now, after a rewind.
    run(
        &a.path("d"),
        "mkdir many && cd many && touch a b c d && rm -r ../many",
    );
    // Extended attributes.
    run(
        &a.path("d"),
        "touch t && setfattr -n user.a -v one t && setfattr -n user.b -v two t && setfattr -x user.a t",
    );
    let seen = run(&b.path("d"), "getfattr --absolute-names -d t");
    assert!(
        seen.contains("user.b=\"two\"") && !seen.contains("user.a"),
        "{seen}"
    );
    a.end();
    b.end();
    ada.run(&["verify", "notes"]).ends(0);
}

#[test]
fn who_opens_after_a_close_sees_what_was_written() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    for round in 0..60u32 {
        let (here, there) = match round % 2 {
            0 => (&a, &b),
            _ => (&b, &a),
        };
        let text = format!("round {round}\n");
        match round % 5 {
            0 => fs::write(here.path("f"), &text).unwrap(),
            1 => {
                fs::write(here.path("new"), &text).unwrap();
                fs::rename(here.path("new"), here.path("f")).unwrap();
            }
            2 => {
                let mut file = fs::File::options()
                    .append(true)
                    .open(here.path("f"))
                    .unwrap();
                file.write_all(text.as_bytes()).unwrap();
            }
            3 => {
                let file = fs::File::options()
                    .write(true)
                    .open(here.path("f"))
                    .unwrap();
                file.set_len(0).unwrap();
                file.write_all_at(text.as_bytes(), 0).unwrap();
            }
            _ => {
                fs::remove_file(here.path("f")).unwrap();
                let gone = fs::File::open(there.path("f")).unwrap_err();
                assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
                fs::write(here.path("f"), &text).unwrap();
                // The other device knows that there is none, and may believe that for the time of `--attr`.
                wait_until("the new name", || there.path("f").exists());
            }
        }
        let seen = fs::read_to_string(there.path("f")).unwrap();
        assert!(seen.ends_with(&text), "round {round}: {seen:?}");
        assert_eq!(
            seen.lines().count(),
            if round % 5 == 2 { 2 } else { 1 },
            "{seen:?}"
        );
    }
    // A descriptor that is open shows the newest version as a whole.
    fs::write(a.path("f"), "a".repeat(300_000)).unwrap();
    let mut open = fs::File::open(b.path("f")).unwrap();
    let mut first = [0; 4096];
    open.read_exact(&mut first).unwrap();
    fs::write(a.path("f"), "b".repeat(200_000)).unwrap();
    wait_until("the other version", || {
        let mut byte = [0];
        open.read_exact_at(&mut byte, 0).unwrap();
        byte == *b"b"
    });
    let mut all = Vec::new();
    open.rewind().unwrap();
    open.read_to_end(&mut all).unwrap();
    assert!(all.len() == 200_000 && all.iter().all(|byte| *byte == b'b'));
}

#[test]
fn what_moved_away_is_not_opened_by_its_old_name() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    // Names may be old for as long as the test takes: what is opened must be new all the same.
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &["--attr", "1h"]));
    fs::create_dir(a.path("d")).unwrap();
    for name in ["f", "d/f"] {
        fs::write(a.path(name), "old").unwrap();
    }
    for round in 0..10 {
        let text = format!("round {round}");
        let open = |name: &str| fs::read_to_string(b.path(name)).unwrap();
        let before = (open("f"), open("d/f"));
        fs::rename(a.path("f"), a.path(&format!("f{round}"))).unwrap();
        fs::write(a.path("f"), &text).unwrap();
        assert_eq!(open("f"), text, "{before:?}");
        fs::rename(a.path("d"), a.path(&format!("d{round}"))).unwrap();
        fs::create_dir(a.path("d")).unwrap();
        fs::write(a.path("d/f"), &text).unwrap();
        assert_eq!(open("d/f"), text, "{before:?}");
        assert_eq!(open(&format!("d{round}/f")), before.1);
    }
}

#[test]
fn what_is_moved_here_can_be_opened_again_by_its_descriptor() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada) = founded(&[]);
    let a = Mount::of(&ada, &[]);
    fs::write(a.path("f"), "content\n").unwrap();
    let reopen = |line: &str| {
        let line = format!("exec 3<f; {line}; cat /proc/self/fd/3");
        assert_eq!(run(&a.path(""), &line), "content\n");
    };
    reopen("mv f g");
    fs::rename(a.path("g"), a.path("f")).unwrap();
    reopen("mkdir d; mv f d/f");
    fs::rename(a.path("d/f"), a.path("f")).unwrap();
    reopen("rm f");
}

#[test]
fn what_was_open_at_the_end_of_a_mount_is_there_for_others() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let b = Mount::of(&ben, &[]);
    for round in 0..3 {
        let a = Mount::of(&ada, &[]);
        let text = format!("round {round}\n");
        let file = fs::File::create(a.path("f")).unwrap();
        (&file).write_all(text.as_bytes()).unwrap();
        // Nothing is closed: the end of the mount commits it, and this device speaks for it before it is gone.
        a.end_by(Signal::TERM);
        assert_eq!(fs::read_to_string(b.path("f")).unwrap(), text);
        drop(file);
    }
}

#[test]
fn appends_of_two_devices_are_there_once_each() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    fs::write(a.path("log"), "").unwrap();
    let lines = 60;
    std::thread::scope(|scope| {
        for (name, mount) in [("a", &a), ("b", &b)] {
            scope.spawn(move || {
                for line in 0..lines {
                    let mut file = fs::File::options()
                        .append(true)
                        .open(mount.path("log"))
                        .unwrap();
                    writeln!(file, "{name} {line}").unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
    });
    let log = fs::read_to_string(a.path("log")).unwrap();
    for name in ["a", "b"] {
        let own: Vec<&str> = log.lines().filter(|line| line.starts_with(name)).collect();
        let expected: Vec<String> = (0..lines).map(|line| format!("{name} {line}")).collect();
        assert_eq!(own, expected);
    }
    assert_eq!(log.lines().count(), 2 * lines);
    // Ranges that two devices write meet, too.
    fs::write(a.path("both"), vec![b'.'; 200_000]).unwrap();
    let (one, two) = (a.path("both"), b.path("both"));
    let open = |path: &Path| fs::File::options().write(true).open(path).unwrap();
    let (first, second) = (open(&one), open(&two));
    first.write_all_at(&[b'a'; 1000], 10).unwrap();
    second.write_all_at(&[b'b'; 1000], 150_000).unwrap();
    drop(first);
    drop(second);
    let both = fs::read(&one).unwrap();
    assert_eq!(both.len(), 200_000);
    assert!(both[10..1010].iter().all(|byte| *byte == b'a'));
    assert!(both[150_000..151_000].iter().all(|byte| *byte == b'b'));
}

#[test]
fn bytes_that_are_written_during_a_commit_are_not_lost() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    let file = fs::File::create(a.path("f")).unwrap();
    let lines = 400u64;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for line in 0..lines {
                file.write_all_at(format!("{line:07}\n").as_bytes(), 8 * line)
                    .unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        // A close commits, and the kernel lets others write meanwhile. (It does not during fsync.)
        while !writer.is_finished() {
            drop(fs::File::options().write(true).open(a.path("f")).unwrap());
        }
    });
    drop(file);
    let expected: String = (0..lines).map(|line| format!("{line:07}\n")).collect();
    assert_eq!(fs::read_to_string(b.path("f")).unwrap(), expected);
    // A program that neither closes nor syncs loses no more than some seconds.
    let mut file = fs::File::create(a.path("g")).unwrap();
    file.write_all(b"left open").unwrap();
    wait_until("the bytes at the other device", || {
        // The name may be as new as `--attr`.
        fs::read(b.path("g")).is_ok_and(|bytes| bytes == b"left open")
    });
}

#[test]
fn what_was_closed_is_there_once_after_a_kill() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let b = Mount::of(&ben, &[]);
    let mut closed = 0;
    for round in 0..6u64 {
        let a = Mount::of(&ada, &[]);
        let path = a.path("log");
        let writer = std::thread::spawn(move || {
            let mut done = 0;
            let append = |line: u32| -> std::io::Result<()> {
                let mut options = fs::File::options();
                let mut file = options.append(true).create(true).open(&path)?;
                file.write_all(format!("{round} {line}\n").as_bytes())?;
                file.sync_all()
            };
            while append(done).is_ok() {
                done += 1;
            }
            done
        });
        std::thread::sleep(Duration::from_millis(300 + 37 * round));
        a.kill();
        let done = writer.join().unwrap();
        assert!(done > 0);
        closed += done;
        // Nobody attests the last entry of a device until that device is back.
        let a = Mount::of(&ada, &[]);
        let log = fs::read_to_string(b.path("log")).unwrap();
        let own: Vec<&str> = log
            .lines()
            .filter(|line| line.starts_with(&format!("{round} ")))
            .collect();
        let expected: Vec<String> = (0..own.len())
            .map(|line| format!("{round} {line}"))
            .collect();
        assert_eq!(own, expected, "each line once, in its order");
        // The line under way may be there, too.
        let found = own.len() as u32;
        assert!(found == done || found == done + 1, "{found} of {done}");
        a.end();
    }
    let a = Mount::of(&ada, &[]);
    let log = fs::read_to_string(a.path("log")).unwrap();
    assert!(log.lines().count() as u32 >= closed);
    assert_eq!(log, fs::read_to_string(b.path("log")).unwrap());
}

#[test]
fn large_and_sparse_files_come_back() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    let noise = sim::random::noise(5, 24 << 20);
    fs::write(a.path("large"), &noise).unwrap();
    assert!(fs::read(b.path("large")).unwrap() == noise);
    // A range in the middle, by the other device.
    let file = fs::File::options()
        .write(true)
        .open(b.path("large"))
        .unwrap();
    file.write_all_at(b"changed", 10_000_000).unwrap();
    drop(file);
    let mut expected = noise;
    expected[10_000_000..10_000_007].copy_from_slice(b"changed");
    assert!(fs::read(a.path("large")).unwrap() == expected);
    let sparse = fs::File::create(a.path("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    sparse.write_all_at(b"end", (1 << 40) - 3).unwrap();
    drop(sparse);
    // An OPEN asks the server. A `stat` alone may show attributes that are one second old.
    let open = fs::File::open(b.path("sparse")).unwrap();
    assert_eq!(open.metadata().unwrap().len(), 1 << 40);
    let mut end = [0; 8];
    open.read_exact_at(&mut end, (1 << 40) - 8).unwrap();
    assert_eq!(&end, b"\0\0\0\0\0end");
    drop(open);
    // A mount that only reads.
    b.end();
    let b = Mount::of(&ben, &["--read-only"]);
    let refused = fs::write(b.path("large"), "no").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    // Synchronous writes.
    run(
        &a.path(""),
        "dd if=/dev/zero of=m bs=1000 count=20 status=none && sync m",
    );
    let direct = fs::File::options()
        .read(true)
        .custom_flags(OFlags::SYNC.bits() as i32)
        .write(true)
        .open(a.path("m"))
        .unwrap();
    direct.write_all_at(b"sync", 7).unwrap();
    let mut seen = [0; 4];
    fs::File::open(b.path("m"))
        .unwrap()
        .read_exact_at(&mut seen, 7)
        .unwrap();
    assert_eq!(&seen, b"sync");
}

#[test]
fn df_shows_the_room_of_the_server() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada) = founded(&[]);
    let a = Mount::of(&ada, &[]);
    let room = |path: &Path| {
        let of = rustix::fs::statvfs(path).unwrap();
        (of.f_blocks * of.f_frsize, of.f_bavail * of.f_frsize)
    };
    // The server of the test lies on the same disk, and gives each device a share of it for each day.
    let (there, shown) = (room(&ada.path("")), room(&a.path("")));
    assert_eq!(shown.0, there.0);
    assert!(
        shown.1 > 0 && shown.1 <= there.1 + (1 << 30),
        "{shown:?} {there:?}"
    );
}
