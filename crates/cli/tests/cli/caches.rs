//! The disk cache with the real binary: cached blocks are used when the server has lost them, damaged ones
//! are fetched again, the size limits hold, and the cache survives the kill of a mount.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Home, Mounted, Ran, Server, Tmpfs, noise, segments, skipped, wait_until};

const BIG: &str = "sub/deep/big";

/// Overwrites all blocks of a repository, but keeps its index.
fn lose_blocks(repo: &Path) {
    for path in segments(repo) {
        let mut bytes = fs::read(&path).unwrap();
        bytes.iter_mut().skip(64).for_each(|byte| *byte = 0);
        fs::write(&path, bytes).unwrap();
    }
}

/// The files of a cache with blocks.
fn kept(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|it| it == "blocks"))
        .collect()
}

/// Runs the binary with its output as bytes.
fn bytes_of(home: &Home, args: &[&str]) -> Vec<u8> {
    let output = home.command(args).output().unwrap();
    let (code, bytes) = (output.status.code(), output.stdout.clone());
    assert_eq!(code, Some(0), "{}", Ran::of(output).err);
    bytes
}

#[test]
fn cached_blocks_are_read_when_the_server_has_lost_them() {
    let home = Home::new();
    home.published();
    let mut server = home.serve("repo");
    let cat = ["cat", &server.source.clone(), BIG, "--cache", "cache"];
    let big = noise(1, 700_000);
    assert_eq!(bytes_of(&home, &cat), big);
    assert!(!kept(&home.path("cache")).is_empty());
    server.kill();

    lose_blocks(&home.path("repo"));
    let server = home.serve("repo");
    let source = server.source.clone();
    let source = source.as_str();
    let without = home.run(&["cat", source, BIG]);
    assert!(matches!(without.code, 20 | 30), "{}", without.err);
    assert_eq!(
        bytes_of(&home, &["cat", source, BIG, "--cache", "cache"]),
        big
    );
    // The same with the setting, which an empty variable turns off.
    let by_setting = |value: &str| {
        let mut command = home.command(&["cat", source, BIG]);
        Ran::of(command.env("BULLA_CACHE", value).output().unwrap())
    };
    by_setting("cache").ends(0);
    assert_ne!(by_setting("").code, 0);
    drop(server);
    home.run(&["cat", source, BIG]).ends(30);
}

#[test]
fn cached_files_are_read_while_no_server_answers() {
    let home = Home::new();
    home.published();
    let mut server = home.serve("repo");
    let source = server.source.clone();
    let cat = ["--json", "cat", &source, BIG, "--cache", "cache"];
    let big = noise(1, 700_000);
    assert_eq!(bytes_of(&home, &cat[1..]), big);
    server.kill();

    assert_eq!(bytes_of(&home, &cat[1..]), big);
    let told = home.run(&["--json", "stat", &source, BIG, "--cache", "cache"]);
    let told = told.ends(0);
    assert_eq!(told.field("offline"), true);
    assert!(told.err.contains("no location"), "{}", told.err);
    // Blocks that were not read are not in the cache, and without the cache there are none.
    let sought = ["cat", &source, "sub/again", "--cache", "cache"];
    let deadline = ["--deadline", "3s"];
    fs::remove_dir_all(home.path("cache")).unwrap();
    home.run(&[&sought[..], &deadline].concat()).ends(30);
    home.run(&["cat", &source, BIG]).ends(30);
    let online = home.serve("repo");
    let again = home.run(&["--json", "stat", &online.source, BIG, "--cache", "cache"]);
    assert_eq!(again.ends(0).field("offline"), serde_json::Value::Null);
}

#[test]
fn damaged_blocks_of_the_cache_are_fetched_again() {
    let home = Home::new();
    home.published();
    let server = home.serve("repo");
    let cat = ["cat", &server.source, BIG, "--cache", "cache"];
    let big = bytes_of(&home, &cat);
    // Every hundredth byte, so that every block is damaged.
    for path in &kept(&home.path("cache")) {
        let mut bytes = fs::read(path).unwrap();
        bytes
            .iter_mut()
            .skip(100)
            .step_by(100)
            .for_each(|byte| *byte ^= 1);
        fs::write(path, bytes).unwrap();
    }
    assert_eq!(bytes_of(&home, &cat), big);
    // The damaged block was fetched again and is whole.
    lose_blocks(&home.path("repo"));
    assert_eq!(bytes_of(&home, &cat), big);
}

/// A user without rights.
const NOBODY: u32 = 65534;

/// A machine on which another user may run the binary, and has a home.
fn with_other_user(home: &Home) {
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_bulla"), home.path("bulla")).unwrap();
    mode(&home.path("bulla"), 0o755);
    mode(&home.path(""), 0o711);
    fs::create_dir(home.path("theirs")).unwrap();
    std::os::unix::fs::chown(home.path("theirs"), Some(NOBODY), Some(NOBODY)).unwrap();
}

/// The same as [`Home::command`], for the other user.
fn command_of_other_user(home: &Home, args: &[&str]) -> Command {
    let mut command = Command::new(home.path("bulla"));
    command
        .env_clear()
        .env("HOME", home.path("theirs"))
        .current_dir(home.path("theirs"))
        .stdin(Stdio::null())
        .args(args)
        .uid(NOBODY)
        .gid(NOBODY);
    command
}

#[test]
fn users_share_a_cache_and_fetch_damaged_blocks_again() {
    if !rustix::process::geteuid().is_root() {
        return skipped("two users at one cache", "the tests do not run as root");
    }
    let home = Home::new();
    home.published();
    with_other_user(&home);
    let cache = home.path("shared");
    fs::create_dir(&cache).unwrap();
    fs::set_permissions(&cache, Permissions::from_mode(0o777)).unwrap();
    // A server that has lost its blocks.
    let mut copy = Command::new("cp");
    copy.args(["-r", "repo", "lost"]).current_dir(home.path(""));
    assert!(copy.status().unwrap().success());
    lose_blocks(&home.path("lost"));
    let (whole, lost) = (home.serve("repo"), home.serve("lost"));
    let (big, cache_path) = (noise(1, 700_000), cache.to_str().unwrap());
    let own = |server: &Server| {
        let cat = ["cat", &server.source, BIG, "--cache", cache_path];
        bytes_of(&home, &cat)
    };
    let theirs = |server: &Server| {
        let cat = ["cat", &server.source, BIG, "--cache", cache_path];
        let output = command_of_other_user(&home, &cat).output().unwrap();
        let (code, bytes) = (output.status.code(), output.stdout.clone());
        assert_eq!(code, Some(0), "{}", Ran::of(output).err);
        bytes
    };
    let without = command_of_other_user(&home, &["cat", &lost.source, BIG]).output();
    let without = Ran::of(without.unwrap());
    assert!(matches!(without.code, 20 | 30), "{}", without.err);
    assert_eq!(own(&whole), big);
    // The other user reads what the administrator wrote, and not because it may read everything.
    assert_eq!(theirs(&lost), big);
    let first = kept(&cache);
    for path in &first {
        assert_ne!(path.metadata().unwrap().uid(), NOBODY);
        let mut bytes = fs::read(path).unwrap();
        let damaged = bytes.iter_mut().skip(100).step_by(100);
        damaged.for_each(|byte| *byte ^= 1);
        fs::write(path, bytes).unwrap();
    }
    // Damage only costs that the blocks are fetched again, by each user for itself.
    for server in [&whole, &lost] {
        assert_eq!(own(server), big);
        assert_eq!(theirs(server), big);
    }
}

#[test]
fn cache_keeps_its_size_limits() {
    let home = Home::new();
    home.published();
    let server = home.serve("repo");
    let used = |cache: &str| -> u64 {
        let blocks = kept(&home.path(cache));
        blocks
            .iter()
            .map(|path| path.metadata().unwrap().len())
            .sum()
    };
    let cat = |cache: &str, flag: &str, value: &str| {
        let args = ["cat", &server.source, BIG, "--cache", cache, flag, value];
        bytes_of(&home, &args);
    };
    cat("large", "--cache-size", "1GiB");
    assert!(used("large") > 600_000);
    cat("small", "--cache-size", "128KiB");
    assert!(used("small") < 400_000, "{}", used("small"));
    cat("none", "--cache-keep-free", "1000000TiB");
    assert_eq!(used("none"), 0);
    let mut by_setting = home.command(&["cat", &server.source, BIG, "--cache", "nought"]);
    by_setting.env("BULLA_CACHE_KEEP_FREE", "1000000TiB");
    Ran::of(by_setting.output().unwrap()).ends(0);
    assert_eq!(used("nought"), 0);
}

#[test]
fn full_cache_disk_does_not_affect_reads() {
    let home = Home::new();
    home.published();
    let server = home.serve("repo");
    let Some(small) = Tmpfs::of(&home, "small", 4 << 20) else {
        return skipped("a cache on a full disk", "a tmpfs cannot be mounted here");
    };
    let cat = [
        "cat",
        &server.source,
        BIG,
        "--cache",
        "small/cache",
        "--cache-keep-free",
        "0B",
    ];
    let big = noise(1, 700_000);
    let mut partial = 0;
    for step in 0..10 {
        small.leave_free(if step == 0 { 0 } else { 100_000 });
        assert_eq!(bytes_of(&home, &cat), big, "{step}");
        let blocks = kept(&home.path("small/cache"));
        let bytes: u64 = blocks.iter().map(|it| it.metadata().unwrap().len()).sum();
        partial += u64::from((1..700_000).contains(&bytes));
    }
    assert!(partial > 3, "the disk was never full: {partial}");
    // With space again, the rest is cached; the blocks cached before are whole.
    small.leave_free(u64::MAX);
    assert_eq!(bytes_of(&home, &cat), big);
    lose_blocks(&home.path("repo"));
    assert_eq!(bytes_of(&home, &cat), big);
}

#[test]
fn unwritable_cache_is_reported_at_once() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    fs::write(home.path("file"), b"no directory").unwrap();
    for args in [
        &["cat", &source, "a", "--cache", "file/cache"][..],
        &["mount", &source, "mnt", "--cache", "file/cache"],
    ] {
        fs::create_dir_all(home.path("mnt")).unwrap();
        let refused = home.run(args).ends(1);
        assert!(refused.err.contains("file/cache"), "{}", refused.err);
        assert!(refused.err.contains("--cache DIR"), "{}", refused.err);
        assert_eq!(refused.out, "");
    }
}

#[test]
fn a_killed_mount_leaves_a_cache_that_the_next_one_uses() {
    if !Path::new("/dev/fuse").exists() {
        return skipped("a mount with a cache", "no /dev/fuse");
    }
    let home = Home::new();
    home.published();
    fs::create_dir(home.path("mnt")).unwrap();
    let mut server = home.serve("repo");
    let start = |source: &str, more: &[&str]| {
        let mut args = vec!["--json", "mount", source, "mnt", "--foreground"];
        args.extend(more);
        let mut command = home.command(&args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        wait_until("the mount", || home.path("mnt/sub").exists());
        child
    };
    let with = ["--cache", "cache"];
    let big = noise(1, 700_000);
    let mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let mut daemon = start(&server.source, &with);
    assert_eq!(fs::read(home.path("mnt").join(BIG)).unwrap(), big);
    // The daemon writes to the cache in the background.
    let size = || -> u64 {
        let blocks = kept(&home.path("cache"));
        let sizes = blocks.iter().filter_map(|path| path.metadata().ok());
        sizes.map(|metadata| metadata.len()).sum()
    };
    wait_until("the cache", || size() > 700_000);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    drop(mounted);
    server.kill();

    lose_blocks(&home.path("repo"));
    let server = home.serve("repo");
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let source = server.source.clone();
    let mut daemon = start(&source, &with);
    assert_eq!(fs::read(home.path("mnt").join(BIG)).unwrap(), big);
    home.run(&["umount", "mnt"]).ends(0);
    daemon.wait().unwrap();
    // Without a server the mount starts too, and says so.
    drop(server);
    let ran = home.run(&["--json", "mount", &source, "mnt", "--cache", "cache"]);
    assert_eq!(ran.ends(0).field("offline"), true);
    assert_eq!(fs::read(home.path("mnt").join(BIG)).unwrap(), big);
    let told = home.run(&["--json", "status", "mnt"]).ends(0);
    assert_eq!(told.records("mount")[0]["offline"], true);
    let text = home.run(&["status", "mnt"]).ends(0).out;
    assert!(text.contains("OFFLINE"), "{text}");
    home.run(&["umount", "mnt"]).ends(0);
    // Without the cache there is nothing to mount.
    let server = home.serve("repo");
    let refused = home.run(&["mount", &server.source, "mnt", "--deadline", "2s"]);
    assert!(matches!(refused.code, 20 | 30), "{}", refused.err);
}

#[test]
fn prefetched_volume_is_read_without_a_server() {
    let home = Home::new();
    home.published();
    let server = home.serve("repo");
    let source = server.source.clone();
    let prefetch = |more: &[&str]| {
        let args = [&["--json", "prefetch", &source, "--cache", "cache"], more].concat();
        home.run(&args)
    };
    let first = prefetch(&[]).ends(0);
    assert!(first.field("new_blocks").as_u64().unwrap() > 10);
    assert!(first.field("used_bytes").as_u64().unwrap() > 700_000);
    assert_eq!(first.field("not_kept"), 0);
    let again = prefetch(&[]).ends(0);
    assert_eq!(again.field("new_blocks"), 0);
    assert_eq!(again.field("files"), first.field("files"));
    prefetch(&["sub/missing"]).ends(10);
    drop(server);
    let offline = ["--cache", "cache", "--deadline", "3s"];
    assert_eq!(
        bytes_of(&home, &[&["cat", &source, BIG][..], &offline].concat()),
        noise(1, 700_000)
    );
    home.run(&[&["verify", &source][..], &offline].concat())
        .ends(0);
    home.run(&[&["extract", &source, "copy"][..], &offline].concat())
        .ends(0);
    assert_eq!(
        fs::read(home.path("copy").join(BIG)).unwrap(),
        noise(1, 700_000)
    );
}

#[test]
fn prefetched_part_is_read_without_a_server_and_the_rest_is_not() {
    let home = Home::new();
    home.published();
    fs::write(home.path("tree/bulk"), noise(2, 5_000_000)).unwrap();
    home.publish().ends(0);
    let server = home.serve("repo");
    let source = server.source.clone();
    let told = home
        .run(&["prefetch", &source, "sub/deep", "--cache", "cache"])
        .ends(0);
    assert!(told.out.contains("in the cache"), "{}", told.out);
    drop(server);
    let offline = ["--cache", "cache", "--deadline", "3s"];
    assert_eq!(
        bytes_of(&home, &[&["cat", &source, BIG][..], &offline].concat()),
        noise(1, 700_000)
    );
    // The other part is not there, and prefetch says so.
    let rest = home
        .run(&[&["--json", "prefetch", &source][..], &offline].concat())
        .ends(30);
    assert!(rest.out.contains(r#""path":"bulk""#), "{}", rest.out);
    assert!(
        rest.err.contains("the rest is in the cache"),
        "{}",
        rest.err
    );
}

#[test]
fn prefetch_that_cannot_work_or_does_not_fit_says_what_to_do() {
    let home = Home::new();
    let id = home.published();
    let server = home.serve("repo");
    let source = server.source.clone();
    let none = home.run(&["prefetch", &source]).ends(2);
    assert!(none.err.contains("--cache DIR"), "{}", none.err);
    let local = home.source(&id, "repo");
    let local = home.run(&["prefetch", &local, "--cache", "cache"]).ends(2);
    assert!(local.err.contains("bulla://"), "{}", local.err);
    for flags in [
        ["--cache-size", "256KiB"],
        ["--cache-keep-free", "1000000TiB"],
    ] {
        let args = [
            "--json", "prefetch", &source, "--cache", "small", flags[0], flags[1],
        ];
        let small = home.run(&args).ends(3);
        assert!(small.field("not_kept").as_u64().unwrap() > 0);
        assert!(small.err.contains("--cache-size"), "{}", small.err);
    }
}
