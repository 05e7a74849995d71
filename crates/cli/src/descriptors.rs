//! How many descriptors a process may have, and which ones a daemon keeps. It lives longer than the script that starts it, so it keeps what it was given to use
//! and closes everything else that it has inherited: a lock that the script holds through a descriptor (flock) would
//! otherwise be held until the daemon ends, and a reader of a pipe would wait for its end (decision 0083).
//!
//! Given are the standard streams, the sockets of a service manager, and each descriptor that a word of the command
//! line or a variable names: `--passphrase-fd 7`, `/dev/fd/63`, `/proc/self/fd/5`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::{Failure, Kind, Outcome};

/// Variables that say which sockets a service manager has passed, and to which process.
const PASSED: [&str; 2] = ["LISTEN_FDS", "LISTEN_PID"];
/// Directories of the process's descriptors.
const DIRECTORIES: [&str; 2] = ["/dev/fd/", "/proc/self/fd/"];
/// Fewest files that every command may have open.
const FEWEST_FILES: u64 = 32;
/// How flags end that take the number of a descriptor.
const FLAG: &str = "-fd";
const KEY_ON_STDIN: &str = "--volume-key-on-stdin";

/// Closes the descriptors that this process was not given. `words` is its command line.
///
/// Must be called before anything is opened, and before a second thread starts.
pub fn close_others(words: &[OsString]) {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    // Read to its end first: the listing has a descriptor of its own, which is closed with it.
    let open: Vec<i32> = entries.flatten().filter_map(number).collect();
    let variables: Vec<(String, String)> = std::env::vars_os()
        .map(|(name, value)| (lossy(name), lossy(value)))
        .collect();
    let words: Vec<String> = words.iter().cloned().map(lossy).collect();
    let given = given(&words, &variables, std::process::id());
    for number in open.into_iter().filter(|number| !given.contains(number)) {
        // It may be closed already: that of the listing is.
        let _ = nix::unistd::close(number);
    }
}

/// Raises the limit of open files where it is so low that libraries fail in places that cannot be reported.
pub fn check_limit() -> Outcome<()> {
    let limit = getrlimit(Resource::Nofile);
    let may = limit.current.unwrap_or(u64::MAX);
    if may >= FEWEST_FILES {
        return Ok(());
    }
    let raised = Rlimit {
        current: Some(FEWEST_FILES),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).map_err(|_| {
        let what = format!("this process may open {may} files, and needs {FEWEST_FILES}");
        Failure::new(Kind::Descriptors, what)
    })
}

fn lossy(text: OsString) -> String {
    text.to_string_lossy().into_owned()
}

fn given(words: &[String], variables: &[(String, String)], own_pid: u32) -> BTreeSet<i32> {
    let mut given: BTreeSet<i32> = (0..=2).collect();
    let variable = |wanted: &str| {
        let mut found = variables.iter().filter(|(name, _)| name == wanted);
        found.next().map(|(_, value)| value.as_str())
    };
    let [count, pid] = PASSED.map(variable);
    if pid.and_then(|pid| pid.parse().ok()) == Some(own_pid) {
        let count: i32 = count.and_then(|count| count.parse().ok()).unwrap_or(0);
        given.extend(3..3_i32.saturating_add(count));
    }
    // The daemon of a device gets its key from the command that starts it, which has read the passphrase.
    let has_key = words.iter().any(|word| word == KEY_ON_STDIN);
    let mut is_number = false;
    for word in words {
        let (flag, value) = word.split_once('=').unwrap_or((word, ""));
        let is_flag = !has_key && flag.starts_with("--") && flag.ends_with(FLAG);
        let value = if is_flag { value } else { word };
        if is_flag || is_number {
            given.extend(value.parse::<i32>());
        }
        is_number = is_flag && value.is_empty();
    }
    let values = variables.iter().map(|(_, value)| value);
    for text in words.iter().chain(values) {
        for directory in DIRECTORIES {
            for (at, _) in text.match_indices(directory) {
                let number = text.get(at + directory.len()..).unwrap_or_default();
                let end = number.find(|c: char| !c.is_ascii_digit());
                let digits = number.get(..end.unwrap_or(number.len()));
                given.extend(digits.and_then(|digits| digits.parse::<i32>().ok()));
            }
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(words: &[&str], variables: &[(&str, &str)]) -> Vec<i32> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let variables: Vec<(String, String)> = variables.iter().map(owned).collect();
        let given = given(&words, &variables, 7);
        given.into_iter().filter(|number| *number > 2).collect()
    }

    #[test]
    fn descriptors_that_words_and_variables_name_are_given() {
        let none: [i32; 0] = [];
        assert_eq!(numbers(&["serve", "7", "fd", "x-fd", "8"], &[]), none);
        assert_eq!(numbers(&["--passphrase-fd", "7", "8"], &[]), [7]);
        assert_eq!(numbers(&["--passphrase-fd=9", "8"], &[]), [9]);
        assert_eq!(
            numbers(&["--passphrase-fd", "7", "--volume-key-on-stdin"], &[]),
            none
        );
        let paths = ["--key=/dev/fd/63", "/proc/self/fd/5,/dev/fd/6x", "/dev/fd/"];
        assert_eq!(numbers(&paths, &[]), [5, 6, 63]);
        assert_eq!(numbers(&[], &[("BULLA_CACHE", "/dev/fd/4/x")]), [4]);
    }

    #[test]
    fn sockets_of_a_service_manager_are_given_to_the_process_that_they_are_for() {
        let passed = |pid| numbers(&[], &[("LISTEN_FDS", "2"), ("LISTEN_PID", pid)]);
        assert_eq!(passed("7"), [3, 4]);
        assert!(passed("8").is_empty());
        assert!(numbers(&[], &[("LISTEN_FDS", "2")]).is_empty());
    }
}
