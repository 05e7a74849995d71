//! Checks that `make install` and `make deb` install all files, that these work, and that removal leaves
//! none.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Home, Ran, skipped};

/// Runs one of our scripts with the binary of this build.
fn script(home: &Home, name: &str, prefix: &str, args: &[&str]) -> Ran {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(root.join("scripts").join(name));
    command
        .args(args)
        .env("BULLA_PROGRAM", env!("CARGO_BIN_EXE_bulla"))
        .env("DESTDIR", home.path("stage"))
        .env("PREFIX", prefix)
        .env("DEB_COMPRESSION", "none")
        .env("HOME", home.path(""))
        .env("TMPDIR", home.path(""));
    Ran::of(command.output().unwrap())
}

/// The files below a directory, relative to it.
fn files(top: &Path) -> BTreeSet<String> {
    let (mut found, mut pending) = (BTreeSet::new(), vec![top.to_owned()]);
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                pending.push(entry.path());
            } else {
                let path = entry.path();
                let path = path.strip_prefix(top).unwrap();
                found.insert(path.to_str().unwrap().to_owned());
            }
        }
    }
    found
}

/// All commands, including subcommands: `key`, `key new`, ...
fn commands(home: &Home) -> Vec<String> {
    let of = |words: &[&str]| -> Vec<String> {
        let help = home.run(&[words, &["--help"]].concat()).ends(0).out;
        let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let names = lines.take_while(|line| line.starts_with("  "));
        let names = names.filter_map(|line| line.split_whitespace().next());
        names
            .filter(|name| *name != "help")
            .map(str::to_owned)
            .collect()
    };
    let mut all = Vec::new();
    for name in of(&[]) {
        let below = of(&[&name]);
        all.extend(below.iter().map(|second| format!("{name} {second}")));
        all.push(name);
    }
    assert!(
        all.len() > 20 && all.contains(&"key new".to_owned()),
        "{all:?}"
    );
    all
}

/// Checks the installed manual, completions and documents of either installation.
fn check_documents(home: &Home, share: &Path, man_ending: &str) {
    for command in commands(home) {
        let page = format!("man/man1/bulla-{}.1{man_ending}", command.replace(' ', "-"));
        assert!(share.join(&page).is_file(), "no page {page}");
    }
    let bash = fs::read_to_string(share.join("bash-completion/completions/bulla")).unwrap();
    let fish = fs::read_to_string(share.join("fish/vendor_completions.d/bulla.fish")).unwrap();
    for command in commands(home) {
        let word = command.split(' ').next_back().unwrap();
        for (shell, completions) in [("bash", &bash), ("fish", &fish)] {
            assert!(
                completions.contains(word),
                "{shell} does not complete {command}"
            );
        }
    }
    for flag in [
        "--unsigned",
        "--keep",
        "--grace",
        "--fix",
        "--freshness",
        "--metrics",
    ] {
        assert!(bash.contains(flag), "bash does not complete {flag}");
    }
}

/// The sections of a program or a file of symbols, and its build id.
fn sections(path: &Path) -> String {
    let mut readelf = Command::new("readelf");
    let read = readelf.args(["-SnW"]).arg(path).output();
    Ran::of(read.unwrap()).ends(0).out
}

fn build_id(path: &Path) -> String {
    let sections = sections(path);
    let line = sections.lines().find(|line| line.contains("Build ID: "));
    line.unwrap().rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn make_install_installs_all_files() {
    let home = Home::new();
    script(&home, "install.sh", "/opt/bulla", &[]).ends(0);
    let stage = home.path("stage");
    let own = stage.join("opt/bulla");
    let installed = Command::new(own.join("bin/bulla")).arg("version").output();
    assert!(
        Ran::of(installed.unwrap())
            .ends(0)
            .out
            .starts_with("bulla ")
    );
    let built = Path::new(env!("CARGO_BIN_EXE_bulla"));
    assert!(sections(built).contains(".debug_line"));
    let installed = sections(&own.join("bin/bulla"));
    assert!(!installed.contains(".debug_line") && !installed.contains(".symtab"));
    let link = fs::read_link(stage.join("sbin/mount.bulla")).unwrap();
    assert_eq!(link, Path::new("/opt/bulla/bin/bulla"));
    check_documents(&home, &own.join("share"), "");
    assert!(own.join("share/zsh/site-functions/_bulla").is_file());
    // Units start the installed binary, for any prefix.
    let unit = own.join("lib/systemd/system/bulla-serve.service");
    let unit = fs::read_to_string(unit).unwrap();
    assert!(
        unit.contains("ExecStart=/opt/bulla/bin/bulla serve "),
        "{unit}"
    );
    for name in files(&own.join("lib")) {
        let text = fs::read_to_string(own.join("lib").join(name)).unwrap();
        assert!(!text.contains("/usr/bin/bulla"), "{text}");
    }
    assert!(own.join("share/doc/bulla/docs/cli.md").is_file());
    assert!(own.join("share/doc/bulla/examples/fstab").is_file());
    let left = files(&home.path(""))
        .into_iter()
        .find(|name| name.starts_with("tmp."));
    assert_eq!(left, None, "temporary files are left");
}

#[test]
fn failed_installation_is_reported() {
    let home = Home::new();
    script(&home, "install.sh", "opt", &[]).ends(2);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let mut command = Command::new(script);
    command.env("DESTDIR", home.path("stage"));
    let nothing = command.env("BULLA_PROGRAM", home.path("nothing")).output();
    Ran::of(nothing.unwrap()).ends(1);
    assert!(!home.path("stage").exists());
}

#[test]
fn every_page_of_the_manual_can_be_read() {
    if !Path::new("/usr/bin/man").exists() {
        return skipped("man", "it is not installed");
    }
    let home = Home::new();
    home.run(&["man", "--out", "pages"]).ends(0);
    for page in files(&home.path("pages")) {
        let mut man = Command::new("man");
        let man = man
            .args(["--warnings", "--local-file"])
            .arg(home.path("pages").join(&page));
        let man = man.env("LC_ALL", "C.UTF-8").env("MANWIDTH", "100");
        let read = Ran::of(man.output().unwrap()).ends(0);
        assert!(read.err.is_empty(), "{page}: {}", read.err);
        assert!(
            read.out.contains("SYNOPSIS") && read.out.contains("--json"),
            "{page}"
        );
        let at = |heading: &str| read.out.lines().position(|line| line == heading);
        if let (Some(arguments), Some(options)) = (at("ARGUMENTS"), at("OPTIONS")) {
            assert!(
                arguments < options,
                "{page}: readers look for arguments first"
            );
        }
        if page == "bulla-mount.1" {
            assert!(at("ARGUMENTS").is_some(), "{}", read.out);
        }
    }
}

/// dpkg with a database of its own, independent of this machine's.
fn dpkg(home: &Home, args: &[&str]) -> Ran {
    let root = home.path("root");
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
    fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    for name in ["status", "available"] {
        let path = root.join("var/lib/dpkg").join(name);
        if !path.exists() {
            fs::write(path, "").unwrap();
        }
    }
    let mut command = Command::new("dpkg");
    command.arg(format!("--root={}", root.display()));
    let force = "--force-not-root,depends,script-chrootless,unsafe-io";
    command.args([force, "--log=/dev/null"]).args(args);
    Ran::of(command.output().unwrap())
}

#[test]
fn the_debian_package_installs_and_leaves_nothing() {
    if !Path::new("/usr/bin/dpkg-deb").exists() {
        return skipped("the Debian package", "this is no Debian system");
    }
    let home = Home::new();
    let built = script(&home, "deb.sh", "", &[home.path("out").to_str().unwrap()]).ends(0);
    let package = PathBuf::from(built.out.lines().last().unwrap());
    let package = package.to_str().unwrap();
    let field = |name: &str| {
        let out = Command::new("dpkg-deb")
            .args(["--field", package, name])
            .output();
        Ran::of(out.unwrap()).ends(0).out.trim().to_owned()
    };
    assert_eq!(field("Package"), "bulla");
    assert_eq!(field("Version"), env!("CARGO_PKG_VERSION"));
    assert!(field("Depends").contains("libc6 (>= 2."));

    let ran = dpkg(&home, &["--install", package]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let root = home.path("root");
    let installed = Command::new(root.join("usr/bin/bulla"))
        .arg("version")
        .output();
    Ran::of(installed.unwrap()).ends(0);
    let link = fs::read_link(root.join("sbin/mount.bulla")).unwrap();
    assert_eq!(link, Path::new("/usr/bin/bulla"));
    check_documents(&home, &root.join("usr/share"), ".gz");
    assert!(
        root.join("usr/share/zsh/vendor-completions/_bulla")
            .is_file()
    );
    assert!(root.join("usr/share/doc/bulla/copyright").is_file());
    let symbols = built.out.lines().rev().nth(1).unwrap();
    let ran = dpkg(&home, &["--install", symbols]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let program = root.join("usr/bin/bulla");
    let id = build_id(&program);
    let place = format!("usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
    assert!(!sections(&program).contains(".debug_line"));
    assert!(sections(&root.join(place)).contains(".debug_line"));
    let ran = dpkg(&home, &["--purge", "bulla-dbgsym"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);

    let verified = dpkg(&home, &["--verify", "bulla"]);
    assert_eq!((verified.code, &*verified.out), (0, ""), "{}", verified.err);

    let ran = dpkg(&home, &["--purge", "bulla"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let left: Vec<String> = files(&root)
        .into_iter()
        .filter(|f| !f.starts_with("var/lib/dpkg/"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
