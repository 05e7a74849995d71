//! What a hostile member puts into a shared volume, and what a hostile program does in a mount of it: errors for that file and
//! that call only. The member is the real client with calls that no command makes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use bulla::shared::places::Address;
use bulla::shared::{SharedOptions, SharedVolume};
use rustix::io::Errno;
use trust::array::{ArrayRoot, HOLE};
use trust::inode::{Content, FileContent, Inode, Time};

use crate::shared_mount::run;
use crate::shared_mount_lab::{Mount, can_mount, two_devices};
use crate::support::Home;

const TIME: Time = Time {
    seconds: 1_700_000_000,
    nanos: 0,
};

/// Makes files in the root directory, whatever they are.
fn make(home: &Home, files: Vec<(&[u8], Inode)>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let state = home.path(".local/state/bulla");
        let home = share::home::Home::find(&state, "notes").unwrap().unwrap();
        let options = SharedOptions {
            deadline: Duration::from_secs(30),
            alone: false,
            other: None,
        };
        let volume = SharedVolume::open(home, &options).await.unwrap();
        for (name, inode) in files {
            let at = Address::of(volume.place(name).unwrap());
            volume.create(&at, inode, None).await.unwrap();
        }
        volume.close().await.unwrap();
    });
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|why| Errno::from_io_error(&why))
}

/// Content of so many bytes: one block that nobody has, or a hole.
fn of_nowhere(len: u64) -> Content {
    let (height, top) = match len <= 1 << 20 {
        true => (0, [7; 32]),
        false => (HOLE, [0; 32]),
    };
    Content::Regular(FileContent::Array(ArrayRoot { len, height, top }))
}

#[test]
fn what_a_hostile_member_writes_is_an_error_for_that_file_only() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let file = |mode, mtime, content| Inode::new(mode, mtime, content);
    let plain = || Content::Regular(FileContent::Inline(b"plain\n".as_slice().into()));
    let at = |seconds, nanos| Time { seconds, nanos };
    let long = [b'n'; 255];
    let target = [b'x'; 4095];
    make(
        &ada,
        vec![
            (b"plain", file(0o644, TIME, plain())),
            (&long, file(0o644, TIME, plain())),
            (b"not \xff utf-8\n\x1b[31m", file(0o644, TIME, plain())),
            (b"first time", file(0o644, at(i64::MIN, 0), plain())),
            (
                b"last time",
                file(0o644, at(i64::MAX, 999_999_999), plain()),
            ),
            (b"suid", file(0o7777, TIME, plain())),
            (
                b"device",
                file(0o666, TIME, Content::CharDevice { major: 1, minor: 5 }),
            ),
            (b"pipe", file(0o666, TIME, Content::Fifo)),
            (
                b"circle",
                file(0o777, TIME, Content::Symlink(b"circle".as_slice().into())),
            ),
            (
                b"far link",
                file(0o777, TIME, Content::Symlink(target.to_vec().into())),
            ),
            (b"lost", file(0o644, TIME, of_nowhere(100_000))),
            (b"huge", file(0o644, TIME, of_nowhere(i64::MAX as u64))),
        ],
    );
    let b = Mount::of(&ben, &["--deadline", "5s"]);
    // An entry keeps its directory open.
    let names = fs::read_dir(b.path("")).unwrap();
    let paths: Vec<_> = names.map(|name| name.unwrap().path()).collect();
    assert_eq!(paths.len(), 12);
    for path in paths {
        fs::symlink_metadata(path).unwrap();
    }
    let read = |name: &[u8]| fs::read(b.path("").join(OsStr::from_bytes(name)));
    for name in [
        b"plain".as_slice(),
        &long,
        b"not \xff utf-8\n\x1b[31m",
        b"first time",
        b"last time",
        b"suid",
    ] {
        assert_eq!(read(name).unwrap(), b"plain\n", "{name:?}");
    }
    let kind = |name: &str| fs::symlink_metadata(b.path(name)).unwrap().file_type();
    assert!(kind("device").is_char_device() && kind("pipe").is_fifo());
    // The kernel opens no device of a mount.
    assert_eq!(errno(read(b"device")), Some(Errno::ACCESS));
    assert_eq!(errno(read(b"circle")), Some(Errno::LOOP));
    assert_eq!(
        fs::read_link(b.path("far link")).unwrap().as_os_str().len(),
        4095
    );
    assert_eq!(errno(read(b"lost")), Some(Errno::IO));
    let huge = File::open(b.path("huge")).unwrap();
    let mut end = [1; 8];
    let got = huge.read_at(&mut end, i64::MAX as u64 - 8).unwrap();
    assert_eq!((got, end), (8, [0; 8]));
    drop(huge);
    // Others go on.
    fs::write(b.path("plain"), "goes on\n").unwrap();
    assert_eq!(fs::read(b.path("plain")).unwrap(), b"goes on\n");
    let log = b.log();
    assert!(!log.contains('\x1b'), "{log:?}");
    assert!(!log.contains("panicked"), "{log}");
    b.end();
}

#[test]
fn hostile_programs_get_the_errors_of_posix_and_harm_nobody() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    // Beyond the last offset, and at it.
    let file = File::create_new(a.path("sparse")).unwrap();
    let last = i64::MAX as u64;
    assert_eq!(errno(file.write_at(b"xx", last - 1)), Some(Errno::INVAL));
    file.set_len(1 << 40).unwrap();
    file.write_at(b"end", (1 << 40) - 3).unwrap();
    file.sync_all().unwrap();
    let there = File::open(b.path("sparse")).unwrap();
    let mut end = [0; 4];
    assert_eq!(there.read_at(&mut end, (1 << 40) - 4).unwrap(), 4);
    assert_eq!(&end, b"\0end");
    assert_eq!(there.metadata().unwrap().len(), 1 << 40);
    drop((file, there));

    // A directory into itself, over what is not empty, and a name that is too long.
    fs::create_dir_all(a.path("d/e/f")).unwrap();
    let into_itself = fs::rename(a.path("d"), a.path("d/e/f/g"));
    assert_eq!(errno(into_itself), Some(Errno::INVAL));
    assert_eq!(errno(fs::remove_dir(a.path("d"))), Some(Errno::NOTEMPTY));
    let long = "n".repeat(256);
    assert_eq!(errno(File::create(a.path(&long))), Some(Errno::NAMETOOLONG));
    let mode = fs::Permissions::from_mode(0o7777);
    fs::set_permissions(a.path("d"), mode).unwrap();

    // Names are made and removed while others list them: each name that stays is listed once.
    fs::create_dir(a.path("many")).unwrap();
    run(&a.path("many"), "for i in $(seq 60); do : > stays$i; done");
    let begin = Instant::now();
    let mut rounds = 0;
    while begin.elapsed() < Duration::from_secs(4) {
        let churn = a.path("many/comes-and-goes");
        fs::write(&churn, "x").unwrap();
        for mount in [&a, &b] {
            let names = fs::read_dir(mount.path("many")).unwrap();
            let names = names.map(|it| it.unwrap().file_name());
            let stays = names.filter(|name| name.as_bytes().starts_with(b"stays"));
            assert_eq!(stays.count(), 60);
        }
        fs::remove_file(&churn).unwrap();
        rounds += 1;
    }
    assert!(rounds > 0);

    // Many open files, of which some are removed.
    let open: Vec<File> = (0..400)
        .map(|i| {
            let path = a.path(&format!("many/open{i}"));
            let file = File::create_new(&path).unwrap();
            file.write_at(b"mine", 0).unwrap();
            if i % 2 == 0 {
                fs::remove_file(&path).unwrap();
            }
            file
        })
        .collect();
    for file in &open {
        let mut got = [0; 4];
        assert_eq!(file.read_at(&mut got, 0).unwrap(), 4);
        assert_eq!(&got, b"mine");
        assert!(file.metadata().unwrap().size() == 4);
    }
    drop(open);
    assert_eq!(fs::read_dir(b.path("many")).unwrap().count(), 60 + 200);
    assert!(!a.log().contains("panicked"), "{}", a.log());
    a.end();
    b.end();
}
