//! A second implementation of the formats in Python (`interop/`), written from docs/formats alone, reads what the
//! binary publishes and refuses what was changed. `make install-deps` installs what it needs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Home, Ran, copy, noise, skipped};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn second<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(root().join("scripts/interop.sh"));
    command.args(args).stdin(Stdio::null());
    command
}

fn verify(repo: &Path, volume: &str, now: u64) -> Ran {
    let now = now.to_string();
    let verify = ["--now", &now, "verify", repo.to_str().unwrap(), volume];
    Ran::of(second(&verify).output().expect("a shell"))
}

/// Requires a verdict, and the exit code that the binary has for its class.
#[track_caller]
fn refused(ran: &Ran, code: i32, verdict: &str) {
    assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
    let start = format!("refused: {verdict}: ");
    assert!(ran.err.starts_with(&start), "{}", ran.err);
}

/// A home with a tree that has every kind of block and inode, in three versions.
fn every_kind() -> (Home, String) {
    let home = Home::new();
    let volume = home.published();
    let tree = home.path("tree");
    fs::create_dir(tree.join("many")).unwrap();
    for i in 0..300 {
        fs::write(tree.join(format!("many/{i:03}")), noise(i, i as usize)).unwrap();
    }
    fs::create_dir(tree.join("none")).unwrap();
    fs::write(tree.join("large"), noise(2, 2_000_000)).unwrap();
    fs::write(tree.join("text"), "compresses\n".repeat(100_000)).unwrap();
    fs::hard_link(tree.join("large"), tree.join("sub/large")).unwrap();
    let holes = File::create(tree.join("holes")).unwrap();
    holes.write_all_at(&noise(3, 200_000), 1_000_000).unwrap();
    holes.set_len(3_000_000).unwrap();
    attributes(&tree);
    home.publish().ends(0);
    fs::write(tree.join("a"), "third\n").unwrap();
    home.publish().ends(0);
    (home, volume)
}

/// Few attributes, which lie in the inode, and many, which lie in blocks.
fn attributes(tree: &Path) {
    for (name, value) in [("user.few", "1"), ("user.many", &"x".repeat(3000))] {
        let args = ["-n", name, "-v", value, "large"];
        let set = Command::new("setfattr")
            .args(args)
            .current_dir(tree)
            .output();
        if !set.expect("setfattr").status.success() {
            skipped("extended attributes", "the file system has none");
        }
    }
}

/// The time as the tests see it.
fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_secs()
}

#[test]
fn second_implementation_reads_what_the_binary_publishes() {
    let (home, volume) = every_kind();
    home.run(&["pull", &home.source(&volume, "repo"), "replica"])
        .ends(0);
    let known = home.run(&["--json", "verify", &home.source(&volume, "repo")]);
    let known = known.ends(0);
    let totals = format!(
        "{} files, {} directories, {} others, {} bytes;",
        known.field("files"),
        known.field("directories"),
        known.field("other"),
        known.field("bytes")
    );
    for repo in ["repo", "replica"] {
        let ran = verify(&home.path(repo), &volume, now());
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.starts_with("ok: version 3, rec1"), "{}", ran.out);
        assert!(ran.out.contains(&totals), "{totals}\n{}", ran.out);
    }
    let repo = home.path("repo");
    let extract = |path: &str| {
        let extract = ["extract", repo.to_str().unwrap(), &volume, path];
        second(&extract).output().unwrap()
    };
    for path in [
        "a",
        "large",
        "sub/large",
        "text",
        "holes",
        "many/299",
        "sub/empty",
    ] {
        let output = extract(path);
        let content = fs::read(home.path("tree").join(path)).unwrap();
        assert!(output.stdout == content, "{path}: {}", Ran::of(output).err);
    }
    for path in ["many/300", "none/a", "a/b"] {
        refused(&Ran::of(extract(path)), 10, "not-found");
    }
}

#[test]
fn second_implementation_reads_the_golden_volume() {
    let golden = root().join("crates/publish/tests/golden");
    let volume = fs::read_to_string(golden.join("volume-0.txt")).unwrap();
    let volume = volume.lines().next().unwrap();
    let repo = golden.join("format-0");
    let ran = verify(&repo, volume, 1_800_000_000);
    assert_eq!(ran.code, 0, "{}", ran.err);
    refused(&verify(&repo, volume, 1_800_003_600), 24, "expired");
    refused(&verify(&repo, volume, 1_799_999_399), 24, "not-yet-valid");
}

#[test]
fn second_implementation_computes_the_vectors() {
    let formats = root().join("docs/formats");
    let vectors = [OsStr::new("vectors"), formats.as_os_str()];
    let ran = Ran::of(second(&vectors).output().unwrap());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let compared = ran
        .out
        .strip_prefix("ok: ")
        .and_then(|out| out.split(' ').next());
    let compared: u32 = compared.unwrap().parse().unwrap();
    assert!(compared > 1_000, "only {compared} values were compared");
}

/// The largest file of a directory of the repository.
fn largest(repo: &Path, directory: &str) -> PathBuf {
    let files = fs::read_dir(repo.join(directory)).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let files = files.filter(|path| path.is_file());
    files
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap()
}

/// Changes one bit in the middle of a file.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn second_implementation_refuses_changed_repositories() {
    let (home, volume) = every_kind();
    let changed = home.path("changed");
    let change = |what: &dyn Fn(&Path)| {
        let _ = fs::remove_dir_all(&changed);
        copy(&home.path("repo"), &changed);
        what(&changed);
        verify(&changed, &volume, now())
    };
    refused(
        &change(&|repo| flip(&largest(repo, "segments"))),
        20,
        "wrong-block",
    );
    refused(
        &change(&|repo| flip(&largest(repo, "index"))),
        30,
        "damaged",
    );
    refused(&change(&|repo| flip(&repo.join("head"))), 30, "damaged");
    refused(
        &change(&|repo| flip(&repo.join("log/0/1"))),
        20,
        "bad-history",
    );
    refused(
        &change(&|repo| flip(&largest(repo, "log/0/tiles"))),
        20,
        "bad-history",
    );
    refused(
        &change(&|repo| link_outside(&largest(repo, "segments"))),
        30,
        "damaged",
    );
    refused(
        &change(&|repo| {
            File::create(repo.join("bulla"))
                .unwrap()
                .write_all(b"")
                .unwrap()
        }),
        30,
        "damaged",
    );
    refused(
        &change(&|repo| fs::remove_file(largest(repo, "segments")).unwrap()),
        30,
        "unavailable",
    );
    let repo = home.path("repo");
    refused(&verify(&repo, &volume, now() + 8 * 86_400), 24, "expired");
    refused(&verify(&repo, &volume, now() - 86_400), 24, "not-yet-valid");
    let other = "vol1nj8nmtllrm059w4raplj0hc9eyjrfkyemyyhlxtqjz3maz92q6xsnrgpaz";
    refused(&verify(&repo, other, now()), 20, "wrong-volume");
}

/// Puts a symbolic link in the place of a file.
fn link_outside(path: &Path) {
    let outside = path.with_extension("moved");
    fs::rename(path, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, path).unwrap();
}
