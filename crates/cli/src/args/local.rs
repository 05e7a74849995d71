//! Paths of this machine: a word that is written as an address or a SOURCE is never taken for a directory or a file of
//! that name. The check goes over what clap has parsed as paths, so it holds for every command, and for new ones.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ::share::client::Location;
use clap::ArgMatches;
use trust::statement::VolumeId;
use wire::shared::ServerAddress;

use crate::failure::{Failure, Kind, Outcome};
use crate::text;

/// Whoever begins a name with one of these and a colon means an address.
const SCHEMES: &[&[u8]] = &[
    b"bulla", b"http", b"https", b"s3", b"ssh", b"sftp", b"rsync",
];

/// What a path must not look like.
fn looks_like(path: &Path) -> Option<&'static str> {
    let text = path.as_os_str().as_bytes();
    let first = text.split(|b| *b == b'/').next().unwrap_or_default();
    // An absolute path, or one that begins with `./` or `../`.
    if matches!(first, b"" | b"." | b"..") {
        return None;
    }
    let after = text.get(first.len()..).unwrap_or_default();
    // `scheme://host`, and `host:/path` as of scp(1) and rsync(1).
    if let Some(place) = first.strip_suffix(b":").filter(|_| !after.is_empty()) {
        let possible = |b: &u8| {
            b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.' | b'_' | b'[' | b']' | b':')
        };
        if !place.is_empty() && place.iter().all(possible) {
            return Some("an address");
        }
    }
    let mut parts = first.splitn(2, |b| *b == b':');
    if let (Some(scheme), Some(_)) = (parts.next(), parts.next())
        && SCHEMES.contains(&scheme)
    {
        return Some("an address");
    }
    let at = first.iter().position(|b| *b == b'@')?;
    let (before, place) = first.split_at(at);
    let volume = std::str::from_utf8(before).unwrap_or_default();
    if volume.parse::<VolumeId>().is_ok() {
        return Some("a SOURCE");
    }
    (!before.is_empty() && place.contains(&b':')).then_some("an address")
}

/// A server of a shared volume, or a directory of this machine.
pub(super) fn parse_place(text: OsString) -> Result<Location, String> {
    if let Some(server) = text.to_str().filter(|text| text.starts_with("bulla://")) {
        let server: Result<ServerAddress, _> = server.parse();
        return server.map(Location::Server).map_err(|e| e.to_string());
    }
    let path = PathBuf::from(text);
    match looks_like(&path) {
        Some(what) => Err(format!(
            "this is {what}, and neither a directory of this machine nor bulla://host[:port]"
        )),
        None => Ok(Location::Directory(path)),
    }
}

/// Not checked: it makes no directory, and says itself when DIR and SOURCE are swapped.
const DIR_OF_MOUNT: (&str, &str) = ("mount", "dir");

/// Refuses the first path of a command line that looks like an address or a SOURCE.
///
/// # Errors
/// [`Kind::NotLocal`].
pub fn check(matches: &ArgMatches) -> Outcome<()> {
    check_of("", matches)
}

fn check_of(command: &str, matches: &ArgMatches) -> Outcome<()> {
    for id in matches.ids() {
        if (command, id.as_str()) == DIR_OF_MOUNT {
            continue;
        }
        // An argument of another type, or a group.
        let Ok(Some(paths)) = matches.try_get_many::<PathBuf>(id.as_str()) else {
            continue;
        };
        for path in paths {
            if let Some(what) = looks_like(path) {
                let name = text::printable(path.as_os_str().as_bytes());
                let error = format!("{name} is {what}, and a path of this machine is needed");
                return Err(Failure::new(Kind::NotLocal, error));
            }
        }
    }
    match matches.subcommand() {
        Some((command, matches)) => check_of(command, matches),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::*;
    use crate::args::Cli;

    const VOLUME: &str = "vol1";

    #[test]
    fn other_place_is_a_directory_or_a_server() {
        let place = |text: &str| parse_place(OsString::from(text));
        let server = place("bulla://host:7").unwrap();
        assert_eq!(server, Location::Server("bulla://host:7".parse().unwrap()));
        for path in ["repo", "/srv/repo", "./bulla:host"] {
            assert_eq!(place(path), Ok(Location::Directory(path.into())));
        }
        for wrong in ["bulla://", "https://host/", "host:/srv", "bulla:host"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_and_sources_are_no_paths() {
        let volume = VolumeId::from_bytes([7; 32]).to_string();
        assert!(volume.starts_with(VOLUME), "{volume}");
        for text in [
            "bulla://host",
            "https://example.org/v",
            "s3://bucket/v",
            "file:///srv/v",
            "user@host:/srv/v",
            "user@host:v",
            "any@host:7420",
            "host:/srv/v",
            "[2001:db8::1]:/srv/v",
            "C:/v",
            "bulla:host",
            "s3:bucket/v",
            &format!("{volume}@host"),
            &format!("{volume}@/srv/v"),
            &format!("{volume}@bulla://host"),
        ] {
            assert!(looks_like(Path::new(text)).is_some(), "{text}");
            let local = format!("./{text}");
            assert!(looks_like(Path::new(&local)).is_none(), "{local}");
        }
        for text in [
            "-",
            "v",
            "a:b",
            "./a:b",
            "a@b",
            "a@b/c:d",
            "/srv/user@host:v",
            "..",
            "://v",
            "v:",
            "2026-11-28T10:00/v",
            "a b://c",
            "x/s3://y",
            "~/v",
            "@a:b",
        ] {
            assert!(looks_like(Path::new(text)).is_none(), "{text}");
        }
    }

    /// Names of values that are no path alone: the command itself tells apart what they can be.
    const MIXED: &[&str] = &["KEY|FILE", "FILE... VOLUME [PATH]"];

    /// Of a shared volume: the key of a device, and a file in the volume.
    const SHARED: &[&str] = &["device DEVICE", "write FILE"];

    /// Each argument that takes a path, with the words of its command.
    fn paths(
        command: &Command,
        words: &[OsString],
        found: &mut Vec<(Vec<OsString>, String, bool)>,
    ) {
        for argument in command.get_arguments() {
            let names = argument.get_value_names().unwrap_or_default();
            let name = names
                .first()
                .map(|name| name.to_string())
                .unwrap_or_default();
            let local = ["REPO", "DIR", "FILE", "RECORD", "DEVICE", "LOG"];
            let takes = local
                .iter()
                .any(|word| name.split(['|', ' ', '.']).any(|n| n == *word));
            if takes && !MIXED.contains(&name.as_str()) {
                let path = clap::value_parser!(PathBuf).type_id();
                let is_path = argument.get_value_parser().type_id() == path;
                let shown = format!("{} {name}", argument.get_id());
                found.push((words.to_vec(), shown, is_path));
            }
        }
        for below in command.get_subcommands() {
            let words = [words, &[below.get_name().into()]].concat();
            paths(below, &words, found);
        }
    }

    #[test]
    fn every_argument_that_names_a_place_of_this_machine_is_parsed_as_a_path() {
        let mut command = Cli::command();
        command.build();
        let mut found = Vec::new();
        paths(&command, &[], &mut found);
        assert!(found.len() > 60, "{}", found.len());
        let is_shared = |words: &[OsString], shown: &str| {
            words.first().is_some_and(|word| word == "share") && SHARED.contains(&shown)
        };
        let others = found.iter().filter(|(_, _, is_path)| !is_path);
        let others: Vec<_> = others
            .filter(|(words, shown, _)| !is_shared(words, shown))
            .collect();
        assert!(others.is_empty(), "{others:?}");
    }

    #[test]
    fn commands_that_write_refuse_an_address_in_each_place() {
        for words in [
            &["publish", "tree", "bulla://host/v"][..],
            &["publish", "user@host:tree", "v"],
            &["publish", "tree", "v", "--key", "https://example.org/k"],
            &["publish", "tree", "v", "--unsigned", "--out", "s3://b/r"],
            &["key", "new", "--out", "user@host:k"],
            &["renew", "bulla://host"],
            &["policy", "new", "s3://b/v", "--out", "f"],
            &["mount", "v", "m", "--record", "user@host:f"],
        ] {
            let words = ["bulla"].iter().chain(words);
            let matches = Cli::command().try_get_matches_from(words.clone()).unwrap();
            let refused = check(&matches).map_err(|failure| failure.kind);
            assert_eq!(refused, Err(Kind::NotLocal), "{words:?}");
        }
        let words = ["bulla", "publish", "./a:b", "./user@host:v"];
        let matches = Cli::command().try_get_matches_from(words).unwrap();
        assert!(check(&matches).is_ok());
    }
}
