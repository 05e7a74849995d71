//! What is left of an access control list (docs/decisions/0082). Lists are not published, because a mount obeys only
//! the mode. With a list, the group bits of a mode are the list's mask, so a mode that is copied as it is may grant
//! more than the list. [`Access`] narrows it: to what the list grants to owning group and others, and to what it leaves
//! to everybody that it names. It never widens.
//!
//! A list comes from the system (`system.posix_acl_access`, version 2; `system.nfs4_acl` and `system.nfs4_dacl`), or as
//! text from an archive. A list is known by its name ([`is_list`]), also one of a kind that is not read. Of such a list,
//! and of a malformed one, nothing is left but the owner's access.

use bytes::Bytes;

const POSIX: &[u8] = b"system.posix_acl_access";
/// Entries after their number (RFC 7530, section 6.2.1).
const NFS: &[u8] = b"system.nfs4_acl";
/// The same after a word of flags (RFC 8881, section 6.2.2).
const NFS_DACL: &[u8] = b"system.nfs4_dacl";
/// Lists that no access to the file follows from: of new files in a directory, and of what is written down.
const OTHER_LISTS: &[&[u8]] = &[
    b"system.posix_acl_default",
    b"system.nfs4_sacl",
    b"SCHILY.acl.default",
    b"trusted.SGI_ACL_DEFAULT",
];

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The most that owner, owning group and others may do: permission bits, 0 to 7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    owner: u16,
    group: u16,
    others: u16,
}

impl Access {
    /// No list: the mode says it.
    pub const MODE: Access = Access {
        owner: 7,
        group: 7,
        others: 7,
    };
    /// A list that cannot be read.
    pub const OWNER: Access = Access {
        owner: 7,
        group: 0,
        others: 0,
    };

    /// The mode to publish.
    #[must_use]
    pub fn narrow(self, mode: u16) -> u16 {
        mode & (!0o777 | self.owner << 6 | self.group << 3 | self.others)
    }

    /// What both allow.
    #[must_use]
    pub fn and(self, other: Access) -> Access {
        Access {
            owner: self.owner & other.owner,
            group: self.group & other.group,
            others: self.others & other.others,
        }
    }

    /// The system's form.
    pub fn of_attribute(name: &[u8], value: &[u8]) -> Access {
        let nfs = match name {
            NFS => Some(value),
            NFS_DACL => value.get(4..),
            _ => None,
        };
        if nfs.and_then(names_nobody) == Some(true) {
            return Access::MODE;
        }
        if name != POSIX {
            return Access::OWNER;
        }
        let Some((version, rest)) = value.split_first_chunk::<4>() else {
            return Access::OWNER;
        };
        let (entries, over) = rest.as_chunks::<8>();
        if u32::from_le_bytes(*version) != VERSION || !over.is_empty() {
            return Access::OWNER;
        }
        let entry = |[a, b, c, d, ..]: &[u8; 8]| {
            Some((u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d])))
        };
        Access::of_entries(entries.iter().map(entry))
    }

    /// The text of an archive: entries at line ends or commas, such as `user:lisa:r-x:502`.
    pub fn of_text(text: &[u8]) -> Access {
        let entries = text.split(|b| matches!(b, b',' | b'\n'));
        let entries = entries.map(|entry| {
            let end = entry.iter().position(|b| *b == b'#');
            entry.get(..end.unwrap_or(entry.len())).unwrap_or_default()
        });
        let entries = entries.map(<[u8]>::trim_ascii);
        Access::of_entries(entries.filter(|entry| !entry.is_empty()).map(entry_of_text))
    }

    /// Tag and permissions of each entry.
    fn of_entries(entries: impl Iterator<Item = Option<(u16, u16)>>) -> Access {
        // Whom an entry is about; of these there is one each (acl(5)).
        let (mut owner, mut group, mut others, mut mask) = (None, None, None, None);
        let (mut users, mut groups) = (None, None);
        for entry in entries {
            let (tag, perm) = match entry {
                Some((tag, perm @ 0..=7)) => (tag, perm),
                _ => return Access::OWNER,
            };
            let of_one = match tag {
                USER => {
                    users = Some(users.unwrap_or(7) & perm);
                    continue;
                }
                GROUP => {
                    groups = Some(groups.unwrap_or(7) & perm);
                    continue;
                }
                USER_OBJ => &mut owner,
                GROUP_OBJ => &mut group,
                MASK => &mut mask,
                OTHER => &mut others,
                _ => return Access::OWNER,
            };
            if of_one.replace(perm).is_some() {
                return Access::OWNER;
            }
        }
        let (Some(owner), Some(group), Some(others)) = (owner, group, others) else {
            return Access::OWNER;
        };
        let has_names = users.is_some() || groups.is_some();
        let mask = match mask {
            None if has_names => return Access::OWNER,
            mask => mask.unwrap_or(7),
        };
        // A user who is named has what their entry says, and nothing of the groups or the others. A member of a group
        // that is named has nothing of the others. The mask bounds them all.
        let bound = |named: Option<u16>| named.map_or(7, |named| named & mask);
        Access {
            owner,
            group: group & mask & bound(users),
            others: others & bound(users) & bound(groups),
        }
    }
}

/// Whether a list of NFSv4 has only what a mode says. A file of an NFS server has such a list always.
fn names_nobody(value: &[u8]) -> Option<bool> {
    let word = |bytes: &[u8]| {
        bytes
            .first_chunk::<4>()
            .map(|word| u32::from_be_bytes(*word))
    };
    let count = word(value)?;
    let mut rest = value.get(4..)?;
    for _ in 0..count {
        let len = usize::try_from(word(rest.get(12..)?)?).ok()?;
        let who = rest.get(16..16usize.checked_add(len)?)?;
        if !matches!(who, b"OWNER@" | b"GROUP@" | b"EVERYONE@") {
            return Some(false);
        }
        rest = rest.get(16 + len.next_multiple_of(4)..)?;
    }
    Some(rest.is_empty())
}

fn entry_of_text(entry: &[u8]) -> Option<(u16, u16)> {
    let fields: Vec<&[u8]> = entry.split(|b| *b == b':').collect();
    let (kind, who, perms) = match fields.as_slice() {
        [kind @ (b"mask" | b"m" | b"other" | b"o"), perms] => (*kind, &b""[..], *perms),
        [kind, who, perms] | [kind, who, perms, _] => (*kind, *who, *perms),
        _ => return None,
    };
    let tag = match (kind, who.is_empty()) {
        (b"user" | b"u", true) => USER_OBJ,
        (b"user" | b"u", false) => USER,
        (b"group" | b"g", true) => GROUP_OBJ,
        (b"group" | b"g", false) => GROUP,
        (b"mask" | b"m", true) => MASK,
        (b"other" | b"o", true) => OTHER,
        _ => return None,
    };
    let mut bits = 0;
    for letter in perms.trim_ascii() {
        bits |= match letter {
            b'r' => 4,
            b'w' => 2,
            b'x' => 1,
            b'-' => 0,
            _ => return None,
        };
    }
    (!perms.is_empty()).then_some((tag, bits))
}

/// What the attributes of a member of an archive leave: lists as text (`SCHILY.acl.access` of star, GNU tar and bsdtar),
/// as the system's attribute, and of kinds that are not read.
pub fn of_member(lists: &[(Bytes, Bytes)]) -> Access {
    let mut access = Access::MODE;
    for (key, value) in lists {
        access = access.and(match key.strip_prefix(b"SCHILY.xattr.") {
            Some(name) => Access::of_attribute(name, value),
            None if **key == *b"SCHILY.acl.access" => Access::of_text(value),
            None => Access::OWNER,
        });
    }
    access
}

/// Whether an attribute, or a pax record, tells who may use a file: by its name, so that lists of kinds that are not
/// known are found too. One of the words of their names ends with `acl`: `system.nfs4_acl_xdr`, `system.cifs_acl`,
/// `security.NTACL`, `trusted.SGI_ACL_FILE`, `afs.acl`.
pub fn is_list(name: &[u8]) -> bool {
    let attribute = [&b"SCHILY.xattr."[..], b"LIBARCHIVE.xattr."]
        .iter()
        .find_map(|prefix| name.strip_prefix(*prefix))
        .unwrap_or(name);
    if attribute.starts_with(b"user.") || OTHER_LISTS.contains(&attribute) {
        return false;
    }
    let mut words = attribute.split(|b| !b.is_ascii_alphanumeric());
    words.any(|word| {
        let ends = word.last_chunk::<3>();
        // The second is the security descriptor of Windows.
        ends.is_some_and(|ends| ends.eq_ignore_ascii_case(b"acl")) || word == b"rawsd"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, perm) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(perm.to_le_bytes());
            bytes.extend(1000u32.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn mode_is_narrowed_to_what_the_list_leaves_to_everybody() {
        let owner = (1, 6);
        for (why, entries, text, mode, narrowed) in [
            (
                "the group bits are the mask",
                &[owner, (USER, 6), (GROUP_OBJ, 0), (MASK, 6), (OTHER, 4)][..],
                "user::rw-,user:lisa:rw-:502,group::---,mask::rw-,other::r--",
                0o664,
                0o604,
            ),
            (
                "a user is denied by name",
                &[owner, (USER, 0), (GROUP_OBJ, 4), (MASK, 4), (OTHER, 4)],
                "u::rw-\nu:lisa:---\ng::r--\nm::r--\no::r--\n",
                0o644,
                0o600,
            ),
            (
                "a group is denied by name",
                &[owner, (GROUP_OBJ, 4), (GROUP, 0), (MASK, 4), (OTHER, 4)],
                "user::rw- # of it\ngroup::r--\ngroup:g:---\nmask:r--\nother:r--\n",
                0o644,
                0o640,
            ),
            (
                "the mask bounds those with names",
                &[owner, (USER, 7), (GROUP_OBJ, 7), (MASK, 0), (OTHER, 5)],
                "user::rw-,user:lisa:rwx,group::rwx,mask::---,other::r-x",
                0o605,
                0o600,
            ),
            (
                "no names",
                &[owner, (GROUP_OBJ, 4), (OTHER, 4)],
                "user::rw-,group::r--,other::r--",
                0o4644,
                0o4644,
            ),
        ] {
            let by_attribute = Access::of_attribute(POSIX, &attribute(entries));
            assert_eq!(by_attribute.narrow(mode), narrowed, "{why}");
            assert_eq!(Access::of_text(text.as_bytes()), by_attribute, "{why}");
        }
    }

    #[test]
    fn list_of_nfs_that_names_nobody_leaves_the_mode() {
        let list = |names: &[&str]| {
            let mut bytes = (names.len() as u32).to_be_bytes().to_vec();
            for name in names {
                bytes.extend([0; 12]);
                bytes.extend((name.len() as u32).to_be_bytes());
                bytes.extend(name.as_bytes());
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        };
        let plain = list(&["OWNER@", "GROUP@", "EVERYONE@"]);
        assert_eq!(Access::of_attribute(NFS, &plain), Access::MODE);
        let with_flags = [&[0; 4], &plain[..]].concat();
        assert_eq!(Access::of_attribute(NFS_DACL, &with_flags), Access::MODE);
        assert_eq!(Access::of_attribute(NFS_DACL, &[0; 3]), Access::OWNER);
        let named = list(&["OWNER@", "lisa@example.org", "GROUP@", "EVERYONE@"]);
        let named_there = [&[0; 4], &named[..]].concat();
        assert_eq!(Access::of_attribute(NFS_DACL, &named_there), Access::OWNER);
        for bad in [&named[..], &plain[..plain.len() - 1], b"", &plain[..20]] {
            assert_eq!(Access::of_attribute(NFS, bad), Access::OWNER);
        }
    }

    #[test]
    fn owner_may_do_what_the_list_grants() {
        let access = Access::of_text(b"user::r--,group::r--,other::r--");
        assert_eq!(access.narrow(0o4755), 0o4444);
    }

    #[test]
    fn lists_are_known_by_their_names() {
        for name in [
            "system.posix_acl_access",
            "system.richacl",
            "system.nfs4_acl_xdr",
            "system.cifs_acl",
            "system.new.acl",
            "security.NTACL",
            "trusted.SGI_ACL_FILE",
            "afs.acl",
            "SCHILY.acl.access",
            "SCHILY.acl.ace",
            "SCHILY.xattr.system.nfs4_dacl",
            "LIBARCHIVE.xattr.security.NTACL",
            "SUN.acl",
            "MSWINDOWS.rawsd",
        ] {
            assert!(is_list(name.as_bytes()), "{name}");
        }
        for name in [
            "user.acl",
            "system.posix_acl_default",
            "system.nfs4_sacl",
            "security.selinux",
            "security.capability",
            "trusted.oracle",
            "SCHILY.acl.default",
            "SCHILY.xattr.user.acl",
            "SCHILY.xattr.system.posix_acl_default",
            "path",
            "",
        ] {
            assert!(!is_list(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn list_that_cannot_be_read_leaves_the_owner() {
        let good = attribute(&[(1, 6), (GROUP_OBJ, 4), (OTHER, 4)]);
        for bad in [&good[..3], &good[..good.len() - 1], b"", &good[..4]] {
            assert_eq!(Access::of_attribute(POSIX, bad), Access::OWNER);
        }
        for (at, byte) in [(0, 3), (4, 0x40), (6, 8)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(Access::of_attribute(POSIX, &bad), Access::OWNER, "{at}");
        }
        for bad in [
            "",
            "user::rwx",
            "user::rw-,group::r--,other::7",
            "nonsense",
            "group::rwx,other::rwx",
            // Which of two is meant?
            "user::rw-,group::---,group::rwx,other::---",
            "user::rw-,group::r--,other::---,other::r--",
            "user::rw-,user::rwx,group::r--,other::r--",
            "user::rw-,user:lisa:---,group::r--,mask::---,mask::r--,other::r--",
            // No mask.
            "user::rw-,user:lisa:r--,group::r--,other::r--",
        ] {
            assert_eq!(Access::of_text(bad.as_bytes()), Access::OWNER, "{bad}");
        }
    }
}
