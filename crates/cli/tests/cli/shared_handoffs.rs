//! Hand-offs between two mounts: a program closes a file on one device, and a program on the other one opens it at once. It
//! never reads what was there before, whatever kind of change it was.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::shared_mount_lab::{Mount, can_mount, two_devices};

/// What the writer does.
const KINDS: [&str; 6] = [
    "written again",
    "replaced by rename",
    "cut and written",
    "appended",
    "removed and made again",
    "moved directory above",
];

/// Changes `d/f` so that its content ends with `text`. Gives the content.
fn change(mount: &Path, kind: usize, (round, before): (usize, &str)) -> String {
    let (d, f) = (mount.join("d"), mount.join("d/f"));
    let text = format!("round {round} {}\n", KINDS[kind]);
    match kind {
        0 => fs::write(f, &text).unwrap(),
        1 => {
            fs::write(d.join("draft"), &text).unwrap();
            fs::rename(d.join("draft"), f).unwrap();
        }
        2 => {
            let mut file = fs::File::options().write(true).open(f).unwrap();
            file.set_len(0).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }
        3 => {
            let mut file = fs::File::options().append(true).open(f).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            return format!("{before}{text}");
        }
        4 => {
            fs::remove_file(&f).unwrap();
            fs::write(f, &text).unwrap();
        }
        _ => {
            fs::rename(&d, mount.join(format!("d{round}"))).unwrap();
            fs::create_dir(&d).unwrap();
            fs::write(f, &text).unwrap();
        }
    }
    text
}

#[test]
fn who_opens_after_a_close_on_another_device_never_reads_what_was_there_before() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let mounts = [Mount::of(&ada, &[]), Mount::of(&ben, &[])];
    fs::create_dir(mounts[0].path("d")).unwrap();
    let mut content = "begin\n".to_owned();
    fs::write(mounts[0].path("d/f"), &content).unwrap();
    let rounds = match std::env::var_os("BULLA_LONG") {
        Some(_) => 10_000,
        None => 150,
    };
    for round in 0..rounds {
        let kind = round % KINDS.len();
        // Each device writes each kind.
        let writer = (round / KINDS.len()) % 2;
        let (there, here) = (mounts[writer].path(""), mounts[1 - writer].path("d/f"));
        content = change(&there, kind, (round, &content));
        let read = fs::read_to_string(&here);
        let read = read.unwrap_or_else(|why| panic!("round {round}, {}: {why}", KINDS[kind]));
        assert_eq!(read, content, "round {round}, {}", KINDS[kind]);
    }
}
