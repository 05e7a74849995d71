//! `mount.bulla`: what mount(8) calls for a line of fstab with the type `bulla`. Its options become
//! flags of `bulla mount`. Design: *Mounts*.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::failure::{Failure, Kind, Outcome};

/// Options that say nothing to this program: mount(8)'s and the service manager's own, and those that
/// a bulla mount always has.
const IGNORED: &[&str] = &[
    "_netdev",
    "async",
    "atime",
    "auto",
    "defaults",
    "diratime",
    "dev",
    "exec",
    "group",
    "noatime",
    "noauto",
    "nodev",
    "nodiratime",
    "nofail",
    "nosuid",
    "nouser",
    "owner",
    "relatime",
    "ro",
    "strictatime",
    "suid",
    "user",
    "users",
];

/// Options of ours, and the flags that they become.
const WITH_VALUE: &[(&str, &str)] = &[
    ("mirror", "--mirror"),
    ("deadline", "--deadline"),
    ("refresh", "--refresh"),
    ("freshness", "--freshness"),
    ("cache-size", "--cache-size"),
    ("owner", "--owner"),
    ("config", "--config"),
];

/// Whether mount(8) called this program.
pub fn called_by_mount(words: &[OsString]) -> bool {
    let name = words.first().and_then(|word| Path::new(word).file_name());
    name == Some(OsStr::new("mount.bulla"))
}

/// `mount.bulla SOURCE DIR [-sfnv] [-o OPTIONS]` as words of `bulla mount`.
pub fn translate(words: &[OsString]) -> Outcome<Vec<OsString>> {
    let mut out: Vec<OsString> = vec!["bulla".into(), "mount".into()];
    let mut sloppy = false;
    let mut options = Vec::new();
    let mut rest = words.iter().skip(1);
    while let Some(word) = rest.next() {
        match word.to_str() {
            Some("-o") => options.extend(rest.next().and_then(|o| o.to_str()).map(str::to_owned)),
            Some("-t" | "-N") => drop(rest.next()),
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                for flag in flags.chars().skip(1) {
                    match flag {
                        's' => sloppy = true,
                        'n' => {}
                        'v' => out.push("-v".into()),
                        other => return Err(unknown(&format!("-{other}"))),
                    }
                }
            }
            _ => out.push(word.clone()),
        }
    }
    for option in options.iter().flat_map(|list| list.split(',')) {
        if let Some(flag) = flag(option) {
            out.extend(flag);
        } else if !sloppy {
            return Err(unknown(option));
        }
    }
    Ok(out)
}

/// The words that one option becomes; `None` for an option that nobody knows.
fn flag(option: &str) -> Option<Vec<OsString>> {
    let known = option.is_empty() || IGNORED.contains(&option);
    if known || option.starts_with("x-") || option.starts_with("comment=") {
        return Some(Vec::new());
    }
    if option == "allow_other" {
        return Some(vec!["--allow-other".into()]);
    }
    let (name, value) = option.split_once('=')?;
    let (_, flag) = WITH_VALUE.iter().find(|(key, _)| *key == name)?;
    Some(vec![flag.into(), value.into()])
}

fn unknown(option: &str) -> Failure {
    let hint = "known are allow_other, owner=, mirror=, deadline=, refresh=, freshness=, cache-size=, config=, \
                x-* and what mount(8) itself understands";
    Failure::new(Kind::Usage, format!("unknown mount option `{option}`")).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_line_of_fstab_becomes_a_mount() {
        let line = "/sbin/mount.bulla vol1x@bulla://h /mnt -n -o \
                    ro,_netdev,nofail,x-systemd.automount,allow_other,owner,owner=7:8,deadline=5s";
        assert!(called_by_mount(&words(line)));
        assert_eq!(
            translate(&words(line)).unwrap(),
            words("bulla mount vol1x@bulla://h /mnt --allow-other --owner 7:8 --deadline 5s")
        );
        assert!(!called_by_mount(&words("/usr/bin/bulla mount")));
    }

    #[test]
    fn an_unknown_option_is_refused_unless_sloppy() {
        let line = "mount.bulla s d -o sunshine";
        assert_eq!(translate(&words(line)).unwrap_err().kind, Kind::Usage);
        assert!(translate(&words("mount.bulla s d -s -o sunshine")).is_ok());
        assert!(
            translate(&words("mount.bulla s d -o rw")).is_err(),
            "it cannot be written"
        );
    }
}
