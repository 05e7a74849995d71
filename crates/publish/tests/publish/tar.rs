//! A tar stream has the root of the directory that it unpacks to; a hostile one is refused.

use std::fs;
use std::io::{Cursor, Read};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::UNIX_EPOCH;

use publish::pipeline::{Input, PublishOptions};
use publish::progress::Published;
use publish::publish_error::PublishError;
use sim::random::noise;

use crate::place::Place;

impl Place {
    fn archive(&self, bytes: &[u8]) -> Result<Published, PublishError> {
        let open = || -> Box<dyn Read> { Box::new(Cursor::new(bytes.to_vec())) };
        self.publish_input(Input::Tar(&open), &self.options())
    }

    /// Whether nothing was published, and no repository left behind.
    fn read_nothing(&self) -> bool {
        !self.repo().exists()
    }

    /// What GNU tar makes of the tree.
    fn tar(&self, args: &[&str]) -> Vec<u8> {
        let mut command = Command::new("tar");
        command
            .args(["-C", self.tree().to_str().unwrap(), "-cf", "-"])
            .args(args);
        let made = command.stderr(Stdio::inherit()).output().unwrap();
        assert!(made.status.success());
        made.stdout
    }
}

/// A tree with everything that an archive can carry.
fn full(place: &Place) {
    let tree = place.tree();
    place.write("empty", b"");
    place.write("inline", b"short");
    place.write("whole", &noise(1, 900_000));
    place.write("long", &noise(2, 3_000_000));
    place.write("b/c/deep", b"deep");
    place.write("b.txt", &noise(3, 5000));
    place.write(
        &format!("long name {}/{}", "n".repeat(150), "m".repeat(200)),
        b"x",
    );
    fs::create_dir(tree.join("nothing")).unwrap();
    symlink("b/c/deep", tree.join("link")).unwrap();
    symlink("t".repeat(300), tree.join("long link")).unwrap();
    fs::hard_link(tree.join("whole"), tree.join("b/again")).unwrap();
    fs::hard_link(tree.join("whole"), tree.join("z third")).unwrap();
    let cwd = rustix::fs::CWD;
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(cwd, tree.join("fifo"), fifo, 0o640.into(), 0).unwrap();
    fs::set_permissions(tree.join("inline"), PermissionsExt::from_mode(0o4751)).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.write_all_at(&noise(4, 70_000), 1 << 20).unwrap();
    sparse.write_all_at(b"end", 40 << 20).unwrap();
    sparse.set_len(50 << 20).unwrap();
    for (name, seconds, nanos) in [("inline", -7, 123_456_789), ("b", 5, 250)] {
        let at = rustix::fs::Timespec {
            tv_sec: seconds,
            tv_nsec: nanos,
        };
        let times = rustix::fs::Timestamps {
            last_access: at,
            last_modification: at,
        };
        let file = fs::File::open(tree.join(name)).unwrap();
        rustix::fs::futimens(&file, &times).unwrap();
    }
    let file = fs::File::open(tree.join("whole")).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    for (name, value) in [
        ("user.a", &b"line\nline\0"[..]),
        ("user.long", &[b'v'; 3000]),
    ] {
        // Not every file system has them.
        let _ = rustix::fs::fsetxattr(&file, name, value, flags);
    }
}

#[test]
fn an_archive_has_the_root_of_its_tree() {
    let place = Place::new();
    full(&place);
    let made = place.publish();
    let root = place.read().offer.record.root;
    let pax = ["--format=pax", "--xattrs", "--xattrs-include=*"];
    for more in [&[][..], &["--sparse"], &["--sort=name"]] {
        let bytes = place.tar(&[&pax[..], more, &["."]].concat());
        let from_tar = place.archive(&bytes).unwrap();
        assert_eq!(place.read().offer.record.root, root, "{more:?}");
        assert!(from_tar.unchanged);
        assert_eq!(from_tar.totals, made.totals);
    }
    // Members in any order, each directory once.
    let members: Vec<String> = place
        .read()
        .inodes
        .keys()
        .map(|path| format!("./{}", String::from_utf8(path.clone()).unwrap()))
        .collect();
    let mut order: Vec<&str> = members.iter().map(String::as_str).collect();
    order.reverse();
    let bytes = place.tar(&[&pax[..], &["--no-recursion"], &order[..]].concat());
    assert!(place.archive(&bytes).unwrap().unchanged);
}

#[test]
fn older_formats_lose_only_what_they_cannot_express() {
    let place = Place::new();
    full(&place);
    let whole = |format: &str, more: &[&str]| {
        let bytes = place.tar(&[&[format], more, &["."]].concat());
        place.archive(&bytes).unwrap();
        place.read()
    };
    for (format, more) in [
        ("--format=gnu", &["--sparse"][..]),
        ("--format=gnu", &[]),
        ("--format=ustar", &["--exclude=long*"]),
    ] {
        // Octal digits cannot express a time before 1970, and ustar has no other form.
        let touched = fs::File::open(place.tree().join("inline")).unwrap();
        touched.set_modified(UNIX_EPOCH).unwrap();
        let read = whole(format, more);
        let sparse = fs::read(place.tree().join("sparse")).unwrap();
        assert!(read.content("sparse") == sparse, "{format}");
        assert_eq!(read.content("b/again"), noise(1, 900_000));
        assert_eq!(read.at("b/again"), read.at("z third"));
        assert_eq!(read.at("b/again").links, 3);
        assert_eq!(read.at("inline").mode, 0o4751);
        assert_eq!(read.at("b").mtime.seconds, 5);
    }
}

/// A header of the ustar form.
pub fn header(name: &[u8], kind: u8, size: u64, link: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..107].copy_from_slice(b"0000644");
    block[108..115].copy_from_slice(b"0000000");
    block[116..123].copy_from_slice(b"0000000");
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[136..147].copy_from_slice(b"00000000007");
    block[156] = kind;
    block[157..157 + link.len()].copy_from_slice(link);
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

pub fn seal(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().div_ceil(512) * 512, 0);
    bytes
}

pub fn file(name: &str, content: &[u8]) -> Vec<u8> {
    let head = header(name.as_bytes(), b'0', content.len() as u64, b"");
    [head, padded(content.to_vec())].concat()
}

pub fn pax(records: &[u8]) -> Vec<u8> {
    let head = header(b"pax", b'x', records.len() as u64, b"");
    [head, padded(records.to_vec())].concat()
}

/// A pax record.
pub fn record(text: &str) -> Vec<u8> {
    let mut len = text.len() + 3;
    while len != text.len() + 2 + len.to_string().len() {
        len += 1;
    }
    format!("{len} {text}\n").into_bytes()
}

pub fn whole(members: &[Vec<u8>]) -> Vec<u8> {
    [members.concat(), vec![0; 1024]].concat()
}

#[test]
fn the_last_of_a_name_counts_and_links_keep_what_they_named() {
    let place = Place::new();
    let bytes = whole(&[
        file("a", b"first"),
        header(b"link", b'1', 0, b"a"),
        header(b"chain", b'1', 0, b"./link"),
        file("./a", b"second"),
        file("gone", b"x"),
        header(b"gone2", b'1', 0, b"gone"),
        file("gone2", b"y"),
        header(b"dir/below/", b'5', 0, b""),
        file("dir//./file", b"z"),
    ]);
    place.archive(&bytes).unwrap();
    let read = place.read();
    assert_eq!(read.content("a"), b"second");
    assert_eq!(read.at("a").links, 1);
    assert_eq!(read.content("link"), b"first");
    assert_eq!(read.at("link").links, 2);
    assert_eq!(read.at("link"), read.at("chain"));
    assert_eq!((read.at("gone").links, read.at("gone2").links), (1, 1));
    assert_eq!(read.at("gone").link_group, None);
    // A directory that is not a member of the archive.
    assert_eq!(
        (read.at("dir").mode, read.at("dir").mtime.seconds),
        (0o755, 0)
    );
    assert_eq!(read.at("dir/below").mode, 0o644);
    assert_eq!(read.content("dir/file"), b"z");
}

#[test]
fn hostile_archives_are_refused_with_the_name() {
    let sparse = |map: &str| {
        let size = record("GNU.sparse.realsize=100000");
        let records = [record("GNU.sparse.major=1"), size].concat();
        [
            pax(&records),
            file("sparse", &padded(map.as_bytes().to_vec())),
        ]
        .concat()
    };
    let mut old = header(b"old", b'S', 512, b"");
    old[257..265].copy_from_slice(b"ustar  \0");
    old[386..398].copy_from_slice(b"00000001000\0");
    old[398..410].copy_from_slice(b"00000000001\0");
    old[483..495].copy_from_slice(b"00000100000\0");
    seal(&mut old);
    let mut bent = file("bent", b"x");
    bent[0] ^= 1;
    let mut octal = header(b"octal", b'0', 0, b"");
    octal[124] = b'9';
    seal(&mut octal);
    let mut huge = header(b"huge", b'0', 0, b"");
    huge[124..136].copy_from_slice(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff");
    seal(&mut huge);
    for (why, name, member) in [
        ("upwards", "../up", file("../up", b"x")),
        ("upwards", "a/../../up", file("a/../../up", b"x")),
        ("absolute", "/etc/passwd", file("/etc/passwd", b"x")),
        ("not a valid name", "", file(".", b"")),
        ("before it", "l", header(b"l", b'1', 0, b"nowhere")),
        (
            "upwards",
            "../t",
            [file("t", b"x"), header(b"l", b'1', 0, b"../t")].concat(),
        ),
        (
            "both",
            "d",
            [file("d", b"x"), file("d/below", b"y")].concat(),
        ),
        (
            "both",
            "s",
            [header(b"s", b'2', 0, b"/etc"), file("s/passwd", b"y")].concat(),
        ),
        ("unknown", "m", header(b"m", b'M', 0, b"")),
        ("damaged", "cent", bent),
        ("number", "octal", octal),
        ("cut off", "huge", huge),
        ("pax", "pax", pax(b"nonsense")),
        ("pax", "pax", pax(b"8 path=a\n")),
        ("pax", "pax", pax(b"99999999999999999999999 path=a\n")),
        ("pax", "pax", pax(&record("mtime=soon"))),
        ("2 MiB", "pax", header(b"pax", b'x', 3 << 20, b"")),
        ("2 MiB", "name", header(b"name", b'L', 1 << 32, b"")),
        (
            "reserved",
            "r",
            [
                pax(&record("SCHILY.xattr.user.bulla.x=yes")),
                file("r", b""),
            ]
            .concat(),
        ),
        (
            "255",
            "n",
            [
                pax(&record(&format!("path={}", "n".repeat(300)))),
                file("n", b""),
            ]
            .concat(),
        ),
        ("order", "sparse", sparse("2\n500\n10\n400\n10\n")),
        ("order", "sparse", sparse("1\n99999\n10\n")),
        ("order", "sparse", sparse("1\n18446744073709551615\n10\n")),
        ("pieces", "sparse", sparse("99999999\n")),
        ("map", "sparse", sparse("x\n")),
        ("map", "sparse", sparse("1\n500\n")),
        ("does not match", "sparse", sparse("1\n500\n100\n")),
        ("does not match", "old", old),
    ] {
        let place = Place::new();
        let refused = place.archive(&whole(&[member])).unwrap_err();
        let told = format!("{refused}: {:?}", std::error::Error::source(&refused));
        assert!(
            told.contains(why) && told.contains(name),
            "{why} {name}: {told}"
        );
        assert!(place.read_nothing(), "{why}");
    }
}

#[test]
fn a_truncated_archive_is_refused() {
    let place = Place::new();
    let bytes = whole(&[file("a", &noise(5, 2000)), file("b", b"x")]);
    for end in [0, 100, 512, 600, 2560, 3072, bytes.len() - 1024] {
        let refused = place.archive(&bytes[..end]).unwrap_err();
        assert!(refused.to_string().contains("cut off"), "{end}: {refused}");
    }
    assert!(place.read_nothing());
    place.archive(&bytes[..bytes.len() - 512]).unwrap();
    let gz = [0x1f, 0x8b, 8, 0].repeat(200);
    let refused = place.archive(&gz).unwrap_err();
    assert!(refused.to_string().contains("compressed"), "{refused}");
}

#[test]
fn a_sparse_file_of_many_holes_costs_no_time() {
    let place = Place::new();
    let map = format!("1\n{}\n3\n", (1u64 << 50) - 3);
    let mut content = padded(map.into_bytes());
    content.extend_from_slice(b"end");
    let size = (1u64 << 50).to_string();
    let size = record(&format!("GNU.sparse.realsize={size}"));
    let records = [record("GNU.sparse.major=1"), size].concat();
    let bytes = whole(&[pax(&records), file("sparse", &content)]);
    let made = place.archive(&bytes).unwrap();
    assert_eq!(made.totals.bytes, 1 << 50);
}

#[test]
fn a_dry_run_and_patterns_work_as_for_a_tree() {
    let place = Place::new();
    let options = PublishOptions {
        exclude: publish::exclude::Exclude::new(&["*.o", "build/"]).unwrap(),
        ..place.options()
    };
    let bytes = whole(&[
        file("a.o", b"x"),
        file("build/a", b"x"),
        file("src/a", b"x"),
    ]);
    let open = || -> Box<dyn Read> { Box::new(Cursor::new(bytes.clone())) };
    place.publish_input(Input::Tar(&open), &options).unwrap();
    let names: Vec<Vec<u8>> = place.read().inodes.keys().cloned().collect();
    assert_eq!(names, [&b""[..], b"src", b"src/a"]);
    let dry = PublishOptions {
        dry_run: true,
        ..place.options()
    };
    let told = place.publish_input(Input::Tar(&open), &dry).unwrap();
    let mut changes: Vec<_> = told.changes.iter().map(|c| c.path.clone()).collect();
    changes.sort();
    assert_eq!(
        changes,
        [Path::new("a.o"), Path::new("build"), Path::new("build/a")]
    );
    assert_eq!(place.read().offer.record.version, 1);
}
