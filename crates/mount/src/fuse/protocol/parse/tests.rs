//! Requests written by hand after `<linux/fuse.h>`, and what must be refused.

use super::*;
use crate::fuse::protocol::opcode::*;
use crate::fuse::request::Caller;

/// A structure, field by field.
#[derive(Clone, Default)]
struct Structure(Vec<u8>);

impl Structure {
    fn u32(mut self, field: u32) -> Structure {
        self.0.extend(field.to_ne_bytes());
        self
    }

    fn u64(mut self, field: u64) -> Structure {
        self.0.extend(field.to_ne_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Structure {
        self.0.extend(bytes);
        self
    }
}

fn new() -> Structure {
    Structure::default()
}

fn header(opcode: u32) -> Header {
    Header {
        opcode,
        unique: 2,
        inode: INodeNo(9),
        caller: Caller {
            uid: 0,
            gid: 0,
            pid: 1,
        },
    }
}

fn parse(opcode: u32, body: &Structure) -> Result<Operation<'_>, Errno> {
    Operation::parse(&header(opcode), &body.0)
}

/// `fuse_write_in` of `size` bytes, and the bytes.
fn write_of(size: u32, data: &[u8]) -> Structure {
    let head = new().u64(3).u64(4096).u32(size).u32(0b111);
    head.u64(77).u32(0o2001).u32(0).bytes(data)
}

/// `fuse_lk_in`
fn lock_of(start: u64, end: u64, kind: i32, flags: u32) -> Structure {
    let lock = new().u64(3).u64(77).u64(start).u64(end);
    lock.u32(kind as u32).u32(4242).u32(flags).u32(0)
}

#[derive(Clone, Copy)]
struct Time(i64, u32);

/// `fuse_setattr_in`
fn setattr_of(valid: u32, [atime, mtime, ctime]: [Time; 3]) -> Structure {
    let head = new().u32(valid).u32(0).u64(3).u64(1 << 40).u64(0);
    let times = head
        .u64(atime.0 as u64)
        .u64(mtime.0 as u64)
        .u64(ctime.0 as u64)
        .u32(atime.1)
        .u32(mtime.1)
        .u32(ctime.1);
    times.u32(0o644).u32(0).u32(1000).u32(100).u32(0)
}

const ZERO: Time = Time(0, 0);

#[test]
fn names_are_one_component_and_end_the_request() {
    for opcode in [LOOKUP, UNLINK, RMDIR] {
        assert!(parse(opcode, &new().bytes(b"file\0")).is_ok());
        for bad in [
            &b""[..],
            b"\0",
            b"file",
            b"file\0x",
            b"file\0\0",
            b".\0",
            b"..\0",
            b"a/b\0",
            b"/\0",
        ] {
            let refused = parse(opcode, &new().bytes(bad)).map(|_| ());
            assert_eq!(refused, Err(Errno::EIO), "{bad:?}");
        }
    }
    let long = [&[b'x'; 4095][..], b"\0"].concat();
    assert!(parse(LOOKUP, &new().bytes(&long)).is_ok());
    let link = new().u64(5).bytes(b"a\xff b\0");
    match parse(LINK, &link).unwrap() {
        Operation::Link { inode, new_name } => {
            assert_eq!((inode, new_name), (INodeNo(5), &b"a\xff b"[..]))
        }
        other => panic!("{other:?}"),
    }
    let link = new().bytes(b"name\0../else where\0");
    match parse(SYMLINK, &link).unwrap() {
        Operation::SymLink { name, target } => {
            assert_eq!((name, target), (&b"name"[..], &b"../else where"[..]))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_kinds_of_rename_have_two_names() {
    let old = new().u64(11).bytes(b"a\0b\0");
    let flags = new().u64(11).u32(2).u32(0).bytes(b"a\0b\0");
    for (opcode, body, expected) in [
        (RENAME, &old, RenameFlags::empty()),
        (RENAME2, &flags, RenameFlags::RENAME_EXCHANGE),
    ] {
        match parse(opcode, body).unwrap() {
            Operation::Rename(rename) => {
                assert_eq!(
                    (rename.parent, rename.new_parent),
                    (INodeNo(9), INodeNo(11))
                );
                assert_eq!((rename.name, rename.new_name), (&b"a"[..], &b"b"[..]));
                assert_eq!(rename.flags, expected);
            }
            other => panic!("{other:?}"),
        }
    }
    // Flags of later kernels reach the file system, which refuses them.
    match parse(RENAME2, &new().u64(11).u32(1 << 9).u32(0).bytes(b"a\0b\0")).unwrap() {
        Operation::Rename(rename) => assert_eq!(rename.flags.bits(), 1 << 9),
        other => panic!("{other:?}"),
    }
}

#[test]
fn new_files_have_mode_umask_and_name() {
    let expected = |new: NewName<'_>| {
        assert_eq!((new.parent, new.name), (INodeNo(9), &b"f"[..]));
        assert_eq!((new.mode, new.umask), (0o100_644, 0o22));
    };
    let mknod = new()
        .u32(0o100_644)
        .u32(0x803)
        .u32(0o22)
        .u32(0)
        .bytes(b"f\0");
    match parse(MKNOD, &mknod).unwrap() {
        Operation::MkNod { new, rdev } => {
            expected(new);
            assert_eq!(rdev, 0x803);
        }
        other => panic!("{other:?}"),
    }
    match parse(MKDIR, &new().u32(0o100_644).u32(0o22).bytes(b"f\0")).unwrap() {
        Operation::MkDir(new) => expected(new),
        other => panic!("{other:?}"),
    }
    let create = new()
        .u32(0o102)
        .u32(0o100_644)
        .u32(0o22)
        .u32(1)
        .bytes(b"f\0");
    match parse(CREATE, &create).unwrap() {
        Operation::Create { new, flags } => {
            expected(new);
            assert_eq!(flags, OpenFlags(0o102));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn attributes_are_changed_only_where_a_bit_says_so() {
    let times = [Time(i64::MIN, 999_999_999), Time(-1, 0), Time(i64::MAX, 1)];
    let parsed = |valid| match parse(SETATTR, &setattr_of(valid, times)).unwrap() {
        Operation::SetAttr(changes) => changes,
        other => panic!("{other:?}"),
    };
    let none = parsed(0);
    assert_eq!(format!("{none:?}"), format!("{:?}", Changes::default()));
    let all = parsed(0b100_0111_1111);
    assert_eq!(
        (all.mode, all.uid, all.gid),
        (Some(0o644), Some(1000), Some(100))
    );
    assert_eq!((all.size, all.handle), (Some(1 << 40), Some(FileHandle(3))));
    let time = |seconds, nanoseconds| Timestamp {
        seconds,
        nanoseconds,
    };
    assert_eq!(
        all.atime,
        Some(TimeOrNow::SpecificTime(time(i64::MIN, 999_999_999)))
    );
    assert_eq!(all.mtime, Some(TimeOrNow::SpecificTime(time(-1, 0))));
    assert_eq!(all.ctime, Some(time(i64::MAX, 1)));
    let now = parsed(1 << 4 | 1 << 5 | 1 << 7 | 1 << 8);
    assert_eq!(
        (now.atime, now.mtime),
        (Some(TimeOrNow::Now), Some(TimeOrNow::Now))
    );
    // The bit for now alone changes nothing.
    assert_eq!(parsed(1 << 7).atime, None);
}

#[test]
fn nanoseconds_of_a_second_or_more_are_refused_where_they_count() {
    let bad = Time(0, 1_000_000_000);
    for (valid, times) in [
        (1 << 4, [bad, ZERO, ZERO]),
        (1 << 5, [ZERO, bad, ZERO]),
        (1 << 10, [ZERO, ZERO, bad]),
    ] {
        let refused = parse(SETATTR, &setattr_of(valid, times)).map(|_| ());
        assert_eq!(refused, Err(Errno::EINVAL));
        assert!(parse(SETATTR, &setattr_of(1, times)).is_ok());
    }
}

#[test]
fn writes_have_exactly_their_bytes() {
    match parse(WRITE, &write_of(5, b"bytes")).unwrap() {
        Operation::Write(write) => {
            assert_eq!(
                (write.inode, write.handle, write.offset),
                (INodeNo(9), FileHandle(3), 4096)
            );
            assert_eq!(
                (write.data, write.flags),
                (&b"bytes"[..], OpenFlags(0o2001))
            );
            assert!(write.from_page_cache && write.kill_privileges);
            assert_eq!(write.owner, Some(LockOwner(77)));
        }
        other => panic!("{other:?}"),
    }
    for size in [0, 4, 6, u32::MAX] {
        let refused = parse(WRITE, &write_of(size, b"bytes")).map(|_| ());
        assert_eq!(refused, Err(Errno::EIO), "{size}");
    }
}

#[test]
fn lock_owners_come_only_with_their_flag() {
    let read = |flags| {
        new()
            .u64(3)
            .u64(8192)
            .u32(4096)
            .u32(flags)
            .u64(77)
            .u32(1)
            .u32(0)
    };
    let owner = |flags| match parse(READ, &read(flags)).unwrap() {
        Operation::Read(read) => {
            assert_eq!(
                (read.offset, read.size, read.flags),
                (8192, 4096, OpenFlags(1))
            );
            read.owner
        }
        other => panic!("{other:?}"),
    };
    assert_eq!((owner(0), owner(2)), (None, Some(LockOwner(77))));
    let release = |flags| new().u64(3).u32(2).u32(flags).u64(77);
    let owner = |flags| match parse(RELEASE, &release(flags)).unwrap() {
        Operation::Release(release) => release.flock_owner,
        other => panic!("{other:?}"),
    };
    assert_eq!((owner(1), owner(2)), (None, Some(LockOwner(77))));
    match parse(FLUSH, &new().u64(3).u32(0).u32(0).u64(77)).unwrap() {
        Operation::Flush { handle, owner } => {
            assert_eq!((handle, owner), (FileHandle(3), LockOwner(77)))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn locks_tell_flock_from_fcntl() {
    let eof = i64::MAX as u64;
    for (flags, flock) in [(0, false), (1, true), (2, false)] {
        match parse(SETLKW, &lock_of(0, eof, libc::F_WRLCK, flags)).unwrap() {
            Operation::SetLk { lock, wait } => {
                assert!(wait);
                assert_eq!(
                    (lock.owner, lock.pid, lock.flock),
                    (LockOwner(77), 4242, flock)
                );
                assert_eq!((lock.range, lock.kind), (0..=eof, LockKind::Write));
            }
            other => panic!("{other:?}"),
        }
    }
    let without_wait = lock_of(5, 5, libc::F_RDLCK, 0);
    assert!(matches!(
        parse(SETLK, &without_wait),
        Ok(Operation::SetLk { wait: false, .. })
    ));
    for (start, end, kind) in [(6, 5, libc::F_RDLCK), (0, 5, 3), (0, 5, -1)] {
        let refused = parse(GETLK, &lock_of(start, end, kind, 0)).map(|_| ());
        assert_eq!(refused, Err(Errno::EINVAL));
    }
}

#[test]
fn batch_of_forgets_has_as_many_as_it_says() {
    let two = |count| new().u32(count).u32(0).u64(5).u64(1).u64(6).u64(u64::MAX);
    let body = two(2);
    let Operation::Forget(forgotten) = parse(BATCH_FORGET, &body).unwrap() else {
        panic!("no FORGET");
    };
    let mut seen = Vec::new();
    forgotten.each(|inode, lookups| seen.push((inode.0, lookups)));
    assert_eq!(seen, [(5, 1), (6, u64::MAX)]);
    for count in [0, 1, 3, u32::MAX] {
        assert!(parse(BATCH_FORGET, &two(count)).is_err());
    }
    assert!(parse(BATCH_FORGET, &two(2).u64(7)).is_err(), "half a pair");
    let one = new().u64(3);
    let Ok(Operation::Forget(Forgotten::One(inode, 3))) = parse(FORGET, &one) else {
        panic!("no FORGET");
    };
    assert_eq!(inode, INodeNo(9));
}

#[test]
fn extended_attributes_have_exactly_their_value() {
    let set = |size, how: i32, rest: &[u8]| new().u32(size).u32(how as u32).bytes(rest);
    match parse(SETXATTR, &set(3, 2, b"user.a/b\0v\0w")).unwrap() {
        Operation::SetXattr { name, value, how } => {
            assert_eq!(
                (name, value, how),
                (&b"user.a/b"[..], &b"v\0w"[..], SetXattr::Replace)
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(parse(SETXATTR, &set(0, 0, b"user.a\0")).is_ok());
    for (size, rest) in [(2, &b"n\0v"[..]), (0, b"n\0v"), (1, b"n"), (1, b"\0v")] {
        assert!(parse(SETXATTR, &set(size, 0, rest)).is_err(), "{rest:?}");
    }
    let refused = parse(SETXATTR, &set(1, 3, b"n\0v")).map(|_| ());
    assert_eq!(refused, Err(Errno::EINVAL));
    let get = new().u32(128).u32(0).bytes(b"user.a\0");
    assert!(matches!(
        parse(GETXATTR, &get),
        Ok(Operation::GetXattr {
            name: b"user.a",
            size: 128
        })
    ));
}

#[test]
fn ranges_that_overflow_are_refused() {
    let allocate =
        |offset, length, mode: i32| new().u64(3).u64(offset).u64(length).u32(mode as u32).u32(0);
    match parse(FALLOCATE, &allocate(10, 20, 1)).unwrap() {
        Operation::FAllocate { range, what, .. } => {
            assert_eq!(
                (range, what),
                (10..30, Allocation::Allocate { keep_size: true })
            );
        }
        other => panic!("{other:?}"),
    }
    for (offset, length) in [(10, 0), (u64::MAX, 1), (1, u64::MAX)] {
        let refused = parse(FALLOCATE, &allocate(offset, length, 0)).map(|_| ());
        assert_eq!(refused, Err(Errno::EINVAL));
    }
    let modes = |mode| parse(FALLOCATE, &allocate(0, 1, mode)).map(|_| ());
    assert_eq!(
        (modes(3), modes(0x10), modes(0x11)),
        (Ok(()), Ok(()), Ok(()))
    );
    // A hole that changes the size, collapse, insert, unshare.
    for mode in [2, 8, 0x20, 0x40, -1] {
        assert_eq!(modes(mode), Err(Errno::EOPNOTSUPP), "{mode}");
    }
}

#[test]
fn copies_have_32_bits_of_length() {
    let copy = |len, flags| {
        let from = new().u64(3).u64(100);
        from.u64(12).u64(4).u64(200).u64(len).u64(flags)
    };
    for (opcode, is_wide) in [(COPY_FILE_RANGE, false), (COPY_FILE_RANGE_64, true)] {
        match parse(opcode, &copy(1 << 40, 0)).unwrap() {
            Operation::CopyFileRange { copy, wide } => {
                assert_eq!(
                    (copy.from, copy.to, copy.to_offset),
                    (INodeNo(9), INodeNo(12), 200)
                );
                assert_eq!((copy.len, wide), (u64::from(u32::MAX), is_wide));
            }
            other => panic!("{other:?}"),
        }
        let refused = parse(opcode, &copy(1, 1)).map(|_| ());
        assert_eq!(refused, Err(Errno::EINVAL));
    }
}

#[test]
fn seeks_and_statx_and_interrupts_are_understood() {
    let seek = |whence| new().u64(3).u64(-5_i64 as u64).u32(whence).u32(0);
    match parse(LSEEK, &seek(4)).unwrap() {
        Operation::LSeek { offset, what, .. } => assert_eq!((offset, what), (-5, Seek::Hole)),
        other => panic!("{other:?}"),
    }
    assert_eq!(parse(LSEEK, &seek(0)).map(|_| ()), Err(Errno::EINVAL));
    let statx = new().u32(1).u32(0).u64(3).u32(0x6000).u32(0x7ff);
    match parse(STATX, &statx).unwrap() {
        Operation::Statx {
            handle,
            flags,
            mask,
        } => {
            assert_eq!((handle, flags, mask), (Some(FileHandle(3)), 0x6000, 0x7ff));
        }
        other => panic!("{other:?}"),
    }
    let interrupt = new().u64(42);
    assert!(matches!(
        parse(INTERRUPT, &interrupt),
        Ok(Operation::Interrupt { unique: 42 })
    ));
}

#[test]
fn requests_that_are_not_ours_are_enosys() {
    for opcode in [
        BMAP,
        POLL,
        SETUPMAPPING,
        REMOVEMAPPING,
        SYNCFS,
        TMPFILE,
        INIT,
        54,
        4096,
        u32::MAX,
    ] {
        assert_eq!(
            parse(opcode, &new()).map(|_| ()),
            Err(Errno::ENOSYS),
            "{opcode}"
        );
    }
}

/// Every request, shortened everywhere: refused or taken, and never a panic.
#[test]
fn shortened_structures_are_refused() {
    let requests = [
        (FORGET, new().u64(1)),
        (BATCH_FORGET, new().u32(1).u32(0).u64(5).u64(1)),
        (GETATTR, new().u32(0).u32(0).u64(0)),
        (SETATTR, setattr_of(0b100_0111_1111, [ZERO; 3])),
        (OPEN, new().u32(0)),
        (READ, new().u64(3).u64(0).u32(1).u32(0).u64(0).u32(0)),
        (WRITE, write_of(1, b"x")),
        (RELEASE, new().u64(3).u32(0).u32(0).u64(0)),
        (FSYNC, new().u64(3).u32(1)),
        (FLUSH, new().u64(3).u64(0).u64(1)),
        (READDIR, new().u64(3).u64(0).u32(4096)),
        (GETLK, lock_of(0, 1, libc::F_RDLCK, 0)),
        (FALLOCATE, new().u64(3).u64(0).u64(1).u32(0)),
        (LSEEK, new().u64(3).u64(0).u32(3)),
        (STATX, new().u32(1).u32(0).u64(3).u32(0).u32(0)),
        (INTERRUPT, new().u64(1)),
        (ACCESS, new().u32(4)),
        (LISTXATTR, new().u32(4)),
    ];
    for (opcode, whole) in requests {
        assert!(parse(opcode, &whole).is_ok(), "{}", name(opcode));
        // Padding at the end may be missing.
        let least = if opcode == GETLK {
            whole.0.len() - 4
        } else {
            whole.0.len()
        };
        for length in 0..least {
            let refused = Operation::parse(&header(opcode), &whole.0[..length]);
            assert!(refused.is_err(), "{} of {length} bytes", name(opcode));
        }
    }
}
