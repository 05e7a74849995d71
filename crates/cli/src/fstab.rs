//! `mount.bulla`: mount(8) calls it for a line of fstab with the type `bulla`. Translates mount options into
//! flags of `bulla mount`. Design: *Mounts*.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::failure::{Failure, Kind, Outcome};

/// Options without effect here: those of mount(8) and the service manager, those that every bulla mount has,
/// and those about writing and times, because a mount is read-only. mount(8) passes `rw` by default.
const IGNORED: &[&str] = &[
    "_netdev",
    "async",
    "atime",
    "auto",
    "defaults",
    "diratime",
    "dirsync",
    "exec",
    "group",
    "iversion",
    "lazytime",
    "loud",
    "mand",
    "noatime",
    "noauto",
    "nodev",
    "nodiratime",
    "nofail",
    "nogroup",
    "noiversion",
    "nolazytime",
    "nomand",
    "noowner",
    "norelatime",
    "nostrictatime",
    "nosuid",
    "nouser",
    "nousers",
    "owner",
    "relatime",
    "rw",
    "silent",
    "strictatime",
    "symfollow",
    "sync",
    "user",
    "users",
];

/// Options of mount(8) that a bulla mount does not support, with the reason. Ignoring them would give the user
/// less function or less protection than requested.
const REFUSED: &[(&str, &str)] = &[
    ("suid", "a bulla mount is always nosuid"),
    ("dev", "a bulla mount is always nodev"),
    ("nosymfollow", "a bulla mount always follows symbolic links"),
    ("remount", "the options of a bulla mount cannot be changed"),
];

/// Options of bulla with a value, and their flags.
const WITH_VALUE: &[(&str, &str)] = &[
    ("mirror", "--mirror"),
    ("at", "--at"),
    ("attr", "--attr"),
    ("locks", "--locks"),
    ("deadline", "--deadline"),
    ("refresh", "--refresh"),
    ("freshness", "--freshness"),
    ("policy", "--policy"),
    ("memory", "--memory"),
    ("cache", "--cache"),
    ("cache-size", "--cache-size"),
    ("cache-keep-free", "--cache-keep-free"),
    ("owner", "--owner"),
    ("config", "--config"),
    ("ca", "--ca"),
    ("profile", "--profile"),
];

/// Whether this program was called as a mount(8) helper.
pub fn called_by_mount(words: &[OsString]) -> bool {
    let name = words.first().and_then(|word| Path::new(word).file_name());
    name == Some(OsStr::new("mount.bulla"))
}

/// Translates `mount.bulla SOURCE DIR [-sfnv] [-o OPTIONS]` into arguments of `bulla mount`. `None` for
/// `mount -f`, which only checks the options.
pub fn translate(words: &[OsString]) -> Outcome<Option<Vec<OsString>>> {
    let mut out: Vec<OsString> = vec!["bulla".into(), "mount".into()];
    let (mut sloppy, mut fake) = (false, false);
    let mut options = Vec::new();
    let mut rest = words.iter().skip(1);
    while let Some(word) = rest.next() {
        match word.to_str() {
            Some("-o") => {
                let list = rest.next().ok_or_else(|| unknown("-o without options"))?;
                // Options that are not UTF-8 are refused: one of them may restrict access.
                let text = list
                    .to_str()
                    .ok_or_else(|| unknown(&list.to_string_lossy()))?;
                options.push(text.to_owned());
            }
            Some("-t" | "-N") => drop(rest.next()),
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                for flag in flags.chars().skip(1) {
                    match flag {
                        's' => sloppy = true,
                        'f' => fake = true,
                        'n' => {}
                        'v' => out.push("-v".into()),
                        other => return Err(unknown(&format!("-{other}"))),
                    }
                }
            }
            None if word.as_encoded_bytes().starts_with(b"-") => {
                return Err(unknown(&word.to_string_lossy()));
            }
            _ => out.push(word.clone()),
        }
    }
    for option in options.iter().flat_map(|list| list.split(',')) {
        if let Some(flag) = flag(option) {
            out.extend(flag);
        } else if !sloppy {
            return Err(refused(option).unwrap_or_else(|| unknown(option)));
        }
    }
    Ok(Some(out).filter(|_| !fake))
}

/// The arguments for one option; `None` if it is unknown.
fn flag(option: &str) -> Option<Vec<OsString>> {
    let known = option.is_empty() || IGNORED.contains(&option);
    let not_ours = ["x-", "X-", "comment=", "user="];
    if known || not_ours.iter().any(|begin| option.starts_with(begin)) {
        return Some(Vec::new());
    }
    match option {
        "allow_other" => return Some(vec!["--allow-other".into()]),
        "noexec" => return Some(vec!["--no-exec".into()]),
        "ro" => return Some(vec!["--read-only".into()]),
        "tls_unverified" => return Some(vec!["--tls-unverified".into()]),
        _ => {}
    }
    let (name, value) = option.split_once('=')?;
    let (_, flag) = WITH_VALUE.iter().find(|(key, _)| *key == name)?;
    // One argument, so that a value that begins with a dash does not become a flag.
    Some(vec![format!("{flag}={value}").into()])
}

/// The failure for an option that is not supported.
fn refused(option: &str) -> Option<Failure> {
    let (_, why) = REFUSED.iter().find(|(name, _)| *name == option)?;
    let mut failure = Failure::new(
        Kind::Usage,
        format!("the mount option `{option}` is not supported"),
    );
    failure.push_cause((*why).to_owned());
    Some(failure.with_hint(format!("remove `{option}` from the mount options")))
}

fn unknown(option: &str) -> Failure {
    let hint = "known options: allow_other, ro, attr=, owner=, mirror=, deadline=, refresh=, freshness=, locks=, policy=, \
                memory=, cache=, cache-size=, cache-keep-free=, config=, ca=, profile=, tls_unverified, noexec, x-* and the options of \
                mount(8) itself";
    Failure::new(Kind::Usage, format!("unknown mount option `{option}`")).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStringExt;

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
            Some(words(
                "bulla mount vol1x@bulla://h /mnt --read-only --allow-other --owner=7:8 --deadline=5s"
            ))
        );
        assert!(!called_by_mount(&words("/usr/bin/bulla mount")));
    }

    #[test]
    fn an_unknown_option_is_refused_unless_sloppy() {
        let line = "mount.bulla s d -o sunshine";
        assert_eq!(translate(&words(line)).unwrap_err().kind, Kind::Usage);
        assert!(translate(&words("mount.bulla s d -s -o sunshine")).is_ok());
    }

    #[test]
    fn common_mount_options_are_accepted() {
        let line = "mount.bulla s d -o rw,sync,dirsync,lazytime,relatime,norelatime,strictatime,iversion,\
                    silent,noatime,nodiratime,user=me,X-mount.mkdir,nosuid,nodev,exec";
        assert_eq!(
            translate(&words(line)).unwrap(),
            Some(words("bulla mount s d"))
        );
        assert_eq!(
            translate(&words("mount.bulla s d -o noexec,nosuid,nodev,user")).unwrap(),
            Some(words("bulla mount s d --no-exec"))
        );
    }

    #[test]
    fn unsupported_options_are_refused_with_the_reason() {
        for (option, why) in REFUSED {
            let line = format!("mount.bulla s d -o ro,{option}");
            let refused = translate(&words(&line)).unwrap_err();
            assert_eq!(refused.kind, Kind::Usage);
            assert_eq!(refused.causes, [*why]);
        }
    }

    #[test]
    fn mount_f_only_checks_the_options() {
        let line = "mount.bulla s d -f -v -o rw,deadline=5s";
        assert_eq!(translate(&words(line)).unwrap(), None);
        assert!(translate(&words("mount.bulla s d -f -o sunshine")).is_err());
    }

    #[test]
    fn options_that_are_not_utf8_are_refused() {
        let mut line = words("mount.bulla s d -o");
        assert!(translate(&line).is_err(), "no options after -o");
        line.push(OsString::from_vec(b"owner=0:0,\xff".to_vec()));
        assert!(translate(&line).is_err());
        let flag = OsString::from_vec(b"--\xff".to_vec());
        assert!(translate(&["mount.bulla".into(), flag]).is_err());
    }

    #[test]
    fn a_value_never_becomes_a_flag() {
        let line = "mount.bulla s d -o deadline=--allow-other";
        assert_eq!(
            translate(&words(line)).unwrap(),
            Some(words("bulla mount s d --deadline=--allow-other"))
        );
    }

    /// Words such as mount(8) might pass, and any others.
    fn any_word() -> impl Strategy<Value = Vec<u8>> {
        let known = prop::sample::select(vec![
            "-o",
            "-t",
            "-N",
            "-sv",
            "-",
            "--",
            "ro,owner=1:2",
            "mirror=-x,allow_other",
            "x-a=,,",
            "config=--owner",
            "=",
            "-f",
        ]);
        prop_oneof![
            known.prop_map(|word| word.as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..12),
            "[-=,a-z]{0,16}".prop_map(String::into_bytes),
        ]
    }

    proptest! {
        #[test]
        fn any_words_give_only_known_flags(
            line in prop::collection::vec(any_word(), 0..8))
        {
            let mut all = vec![OsString::from("mount.bulla")];
            all.extend(line.into_iter().map(OsString::from_vec));
            let Ok(Some(out)) = translate(&all) else { return Ok(()) };
            prop_assert_eq!(&out[..2], &words("bulla mount")[..]);
            for word in &out[2..] {
                let text = word.to_string_lossy();
                let name = text.split('=').next().unwrap_or_default();
                let ours = WITH_VALUE.iter().any(|(_, flag)| *flag == name)
                    || matches!(&*text, "-v" | "--allow-other" | "--no-exec" | "--read-only");
                prop_assert!(ours || !text.starts_with('-') || text == "-", "{text}");
            }
        }
    }
}
