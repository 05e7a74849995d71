//! Daemons close the descriptors that they were not given: a lock that a script holds does not outlive the script.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::lab::Lab;
use crate::shared_lab;
use crate::support::{Home, Mounted, skipped};

/// Descriptors of other processes that lead to `file`.
fn holders(file: &std::path::Path) -> Vec<String> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let open = fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten();
        for descriptor in open.flatten() {
            let leads = fs::read_link(descriptor.path()).is_ok_and(|to| to == file);
            if leads && process.file_name().to_str() != Some(&own) {
                found.push(descriptor.path().display().to_string());
            }
        }
    }
    found
}

/// The command in a shell that has a lock file open as descriptor 9, as in scripts with flock(1).
fn with_lock(home: &Home, args: &[&str]) -> Command {
    with(home, "9>lock", args)
}

/// The command in a shell with a redirection.
fn with(home: &Home, redirection: &str, args: &[&str]) -> Command {
    let plain = home.command(args);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("exec {redirection}; exec \"$0\" \"$@\"")])
        .arg(plain.get_program())
        .args(plain.get_args())
        .env_clear()
        .current_dir(home.path(""))
        .stdin(Stdio::null());
    for (name, value) in plain.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    shell
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a daemon that stays in the foreground, and reads its first record: from then on it serves.
fn begin(mut command: Command) -> Daemon {
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut daemon = Daemon(command.spawn().unwrap());
    let mut line = String::new();
    let stdout = daemon.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert!(
        line.starts_with('{') && !line.contains("\"result\""),
        "{line}"
    );
    daemon
}

#[test]
fn daemons_in_the_foreground_keep_nothing_of_the_script_that_starts_them() {
    let home = Home::new();
    home.published();
    let serve = ["--json", "serve", "repo", "--listen", "127.0.0.1:0"];
    let daemon = begin(with_lock(&home, &serve));
    assert_eq!(holders(&home.path("lock")), [] as [&str; 0], "serve");
    drop(daemon);
    let (_orderer, ada) = shared_lab::founded(&[]);
    let daemon = begin(with_lock(&ada, &["--json", "share", "run", "notes"]));
    assert_eq!(holders(&ada.path("lock")), [] as [&str; 0], "share run");
    drop(daemon);
    // What a word of the command line names is given.
    fs::write(home.path("conf"), "listen = \"127.0.0.1:0\"\n").unwrap();
    let serve = ["--json", "serve", "repo", "--config", "/dev/fd/9"];
    drop(begin(with(&home, "9<conf", &serve)));
}

#[test]
fn daemons_in_the_background_keep_nothing_of_the_script_that_starts_them() {
    if !std::path::Path::new("/dev/fuse").exists() {
        return skipped("descriptors of a mount", "no /dev/fuse");
    }
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    fs::create_dir(home.path("mnt")).unwrap();
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let mount = with_lock(&home, &["mount", &source, "mnt"]).status();
    assert!(mount.unwrap().success());
    assert!(home.path("mnt/a").exists());
    assert_eq!(holders(&home.path("lock")), [] as [&str; 0], "mount");

    let lab = Lab::new(4);
    lab.enrol(&[]).ends(0);
    let attach = [
        "protect",
        "attach",
        "d",
        "--log",
        "l",
        "--key-file",
        "k",
        "--file",
        "m",
    ];
    let attached = with_lock(&lab.home, &attach).stdout(Stdio::null()).status();
    assert!(attached.unwrap().success());
    assert_eq!(holders(&lab.path("lock")), [] as [&str; 0], "attach");
    lab.detach().ends(0);
}
