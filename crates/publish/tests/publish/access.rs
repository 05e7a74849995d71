//! Access is never wider than on the disk: lists narrow the mode, and are not published.

use std::fs;
use std::io::{Cursor, Read};
use std::os::unix::fs::PermissionsExt;

use publish::PublishOptions;
use publish::pipeline::Input;

use crate::place::Place;
use crate::tar::{file, pax, record, whole};

const LIST: &str = "system.posix_acl_access";

/// The list of the system: tag, permissions and number of each entry.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

const NOBODY: u32 = u32::MAX;

#[test]
fn access_control_lists_narrow_the_mode_and_are_not_published() {
    let place = Place::new();
    place.write("masked", b"content");
    place.write("denied", &[7; 3 << 20]);
    place.write("plain", b"content");
    place.write("d/f", b"content");
    let cwd = rustix::fs::CWD;
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(cwd, place.tree().join("fifo"), fifo, 0o640.into(), 0).unwrap();
    fs::set_permissions(place.tree().join("plain"), PermissionsExt::from_mode(0o664)).unwrap();
    let masked = [
        (1, 6, NOBODY),
        (2, 6, 1000),
        (4, 0, NOBODY),
        (16, 6, NOBODY),
        (32, 4, NOBODY),
    ];
    let denied = [
        (1, 6, NOBODY),
        (2, 0, 1000),
        (4, 4, NOBODY),
        (16, 4, NOBODY),
        (32, 4, NOBODY),
    ];
    let entered = [
        (1, 7, NOBODY),
        (4, 5, NOBODY),
        (8, 7, 1000),
        (16, 7, NOBODY),
        (32, 0, NOBODY),
    ];
    let flags = rustix::fs::XattrFlags::empty();
    for (path, entries) in [
        ("masked", masked),
        ("denied", denied),
        ("d", entered),
        ("fifo", masked),
    ] {
        let path = place.tree().join(path);
        rustix::fs::setxattr(&path, LIST, &list(&entries), flags).unwrap();
    }
    let defaults = list(&entered);
    rustix::fs::setxattr(
        place.tree().join("d"),
        "system.posix_acl_default",
        &defaults,
        flags,
    )
    .unwrap();
    // Samba keeps its list so; a list of a kind that is not read.
    let unknown = place.tree().join("unknown");
    place.write("unknown", b"content");
    fs::set_permissions(&unknown, PermissionsExt::from_mode(0o775)).unwrap();
    // Only root may set it.
    let is_set = rustix::fs::setxattr(&unknown, "security.NTACL", b"\x04\0\x04", flags).is_ok();
    for with_owner in [false, true] {
        let options = PublishOptions {
            with_owner,
            ..place.options()
        };
        place.publish_with(&options);
        let read = place.read();
        for (path, mode) in [
            ("masked", 0o604),
            ("denied", 0o600),
            ("plain", 0o664),
            ("unknown", if is_set { 0o700 } else { 0o775 }),
            ("d", 0o750),
            ("fifo", 0o604),
        ] {
            assert_eq!(read.at(path).mode, mode, "{path}, --owner {with_owner}");
            assert!(read.xattrs(path).is_empty(), "{path}, --owner {with_owner}");
        }
    }
}

#[test]
fn lists_of_archives_narrow_the_mode_in_every_form() {
    let text = "user::rw-,user:lisa:rw-:502,group::---,mask::rw-,other::r--";
    let star = record(&format!("SCHILY.acl.access={text}"));
    let gnu = record(&format!("SCHILY.acl.access={}\n", text.replace(',', "\n")));
    let key = |name: &str, value: &[u8]| {
        let rest = name.len() + value.len() + 3;
        let mut len = rest + 1;
        while len != rest + len.to_string().len() {
            len += 1;
        }
        [format!("{len} {name}=").as_bytes(), value, b"\n"].concat()
    };
    let attribute = list(&[
        (1, 6, NOBODY),
        (4, 0, NOBODY),
        (16, 6, NOBODY),
        (32, 4, NOBODY),
    ]);
    for (why, records, mode) in [
        ("star and bsdtar", star, 0o604),
        ("GNU tar", gnu, 0o604),
        (
            "the attribute",
            key("SCHILY.xattr.system.posix_acl_access", &attribute),
            0o604,
        ),
        (
            "libarchive",
            key("LIBARCHIVE.xattr.system.posix_acl_access", b"AgAAAA"),
            0o600,
        ),
        (
            "the owner too",
            record("SCHILY.acl.access=user::r--,group::r--,other::r--"),
            0o444,
        ),
        (
            "an entry twice",
            record("SCHILY.acl.access=user::rw-,group::---,group::rwx,other::r--"),
            0o600,
        ),
        (
            "an attribute of another kind",
            record("SCHILY.xattr.system.nfs4_acl_xdr=xyz"),
            0o600,
        ),
        (
            "a key of another program",
            record("SUN.acl=user::rw-,group::r--"),
            0o600,
        ),
        ("NFSv4", record("SCHILY.acl.ace=owner@:rw::allow"), 0o600),
        (
            "malformed",
            record("SCHILY.acl.access=user::everything"),
            0o600,
        ),
        (
            "defaults",
            record("SCHILY.acl.default=user::rwx,group::---,other::---"),
            0o644,
        ),
        ("none", record("comment=none"), 0o644),
    ] {
        let place = Place::new();
        let bytes = whole(&[[pax(&records), file("f", b"content")].concat()]);
        let open = || -> Box<dyn Read> { Box::new(Cursor::new(bytes.clone())) };
        let options = PublishOptions {
            with_owner: true,
            ..place.options()
        };
        place.publish_input(Input::Tar(&open), &options).unwrap();
        let read = place.read();
        assert_eq!(read.at("f").mode, mode, "{why}");
        assert!(read.xattrs("f").is_empty(), "{why}");
    }
}
