//! Ordinary programs on a mount, over a tree that went through the real pipeline: their results are the same
//! as on the tree itself.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::fixture::{TestMount, noise, quick, wait_until};
use crate::published::{Publisher, fill};

/// Runs `script` with the tree, the mount and an empty directory as `$1`, `$2` and `$3`. It must succeed;
/// gives its output.
fn sh(script: &str, tree: &Path, m: &TestMount, out: &Path) -> String {
    let output = run(script, tree, m, out);
    assert!(output.status.success(), "{script}\n{}", told(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn run(script: &str, tree: &Path, m: &TestMount, out: &Path) -> Output {
    Command::new("bash")
        .args(["-euo", "pipefail", "-c", script, "sh"])
        .args([tree, m.path("").as_path(), out])
        .env("HOME", out)
        .env("LC_ALL", "C.UTF-8")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap()
}

fn told(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn tar_rsync_cp_and_diff_find_no_difference() {
    let publisher = Publisher::new();
    let tree = publisher.tree.path();
    fill(tree);
    let attribute = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(tree.join("large"), "user.a", b"value", attribute).unwrap();
    let source = publisher.publish();
    let m = TestMount::new(publisher.open(source).await, quick()).await;
    let out = tempfile::tempdir().unwrap();
    let rsync = "rsync -aHAX --checksum --dry-run --itemize-changes --delete \"$2/\" \"$1/\"";
    let compare_by_tar = "tar -C \"$2\" -cf - . | tar -C \"$1\" -df -";
    for script in [
        rsync,
        compare_by_tar,
        "tar -C \"$1\" -cf - . | tar -C \"$2\" -df -",
        "diff -r --no-dereference \"$1\" \"$2\"",
        "cp -a \"$2\" \"$3/copy\" && diff -r --no-dereference \"$1\" \"$3/copy\"",
    ] {
        assert_eq!(sh(script, tree, &m, out.path()), "", "{script}");
    }
    // The controls: each script notices one byte that was changed.
    let control = tempfile::tempdir().unwrap();
    sh("cp -a \"$1/.\" \"$3\"", tree, &m, control.path());
    let victim = control.path().join("dir1/f7");
    let time = fs::metadata(&victim).unwrap().modified().unwrap();
    let mut bytes = fs::read(&victim).unwrap();
    bytes[5] ^= 1;
    fs::write(&victim, bytes).unwrap();
    let opened = fs::File::options().write(true).open(&victim).unwrap();
    opened.set_modified(time).unwrap();
    let seen = sh(rsync, control.path(), &m, out.path());
    assert!(seen.contains("dir1/f7"), "{seen}");
    let by_tar = run(compare_by_tar, control.path(), &m, out.path());
    assert!(!by_tar.status.success() && told(&by_tar).contains("dir1/f7"));
}

/// Modules of the C project, each in a file of its own.
const MODULES: u64 = 30;

/// A project with sources, headers, a makefile that builds elsewhere, and a library that the program
/// is linked to.
fn c_project(tree: &Path) {
    let mut header = "#pragma once\n".to_owned();
    let mut sum = String::new();
    for i in 0..MODULES {
        writeln!(header, "long module{i}(long x);").unwrap();
        write!(sum, " + module{i}({i})").unwrap();
        let text = format!(
            "#include \"modules.h\"\n#include <string.h>\n\
             long module{i}(long x) {{ char s[64]; memset(s, (int)x, 64); return s[{i}] * {i} + 1; }}\n"
        );
        fs::write(tree.join(format!("module{i}.c")), text).unwrap();
    }
    fs::write(tree.join("modules.h"), header).unwrap();
    let main = format!(
        "#include <stdio.h>\n#include \"modules.h\"\n\
         int main(void) {{ printf(\"%ld\\n\", 0L{sum}); return 0; }}\n"
    );
    fs::write(tree.join("main.c"), main).unwrap();
    let makefile = "VPATH := $(SRC)\n\
        OBJECTS := $(patsubst $(SRC)/%.c,%.o,$(wildcard $(SRC)/module*.c))\n\
        program: main.o libmodules.so\n\
        \t$(CC) -o $@ main.o -L. -lmodules -Wl,-rpath,'$$ORIGIN'\n\
        libmodules.so: $(OBJECTS)\n\
        \t$(CC) -shared -o $@ $^\n\
        %.o: %.c modules.h\n\
        \t$(CC) -fPIC -I$(SRC) -c -o $@ $<\n\
        \t@echo compiled $<\n";
    fs::write(tree.join("Makefile"), makefile).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_is_built_from_the_mount_and_rebuilt_after_an_update() {
    let publisher = Publisher::new();
    let tree = publisher.tree.path();
    c_project(tree);
    let source = publisher.publish();
    let m = TestMount::new(publisher.open(source).await, quick()).await;
    let out = tempfile::tempdir().unwrap();
    let make = "cd \"$3\" && make -s -j2 -f \"${2%/}/Makefile\" SRC=\"${2%/}\"";
    let compiled = |said: &str| said.matches("compiled").count() as u64;
    assert_eq!(compiled(&sh(make, tree, &m, out.path())), MODULES + 1);
    let expected: u64 = (0..MODULES).map(|i| i * i + 1).sum();
    let run = "\"$3/program\"";
    assert_eq!(sh(run, tree, &m, out.path()), format!("{expected}\n"));
    assert_eq!(compiled(&sh(make, tree, &m, out.path())), 0, "all is built");

    // One source changes: its new time arrives with its new bytes, and only it is compiled.
    let body = "#include \"modules.h\"\nlong module7(long x) { return x + 1000; }\n";
    fs::write(tree.join("module7.c"), body).unwrap();
    publisher.publish();
    wait_until("the update", || m.read("module7.c") == body.as_bytes());
    let again = sh(make, tree, &m, out.path());
    assert!(
        compiled(&again) == 1 && again.contains("module7.c"),
        "{again}"
    );
    let expected = expected - 50 + 1007;
    assert_eq!(sh(run, tree, &m, out.path()), format!("{expected}\n"));

    // The program and its library, published: they run from the mount, mapped by the loader.
    for name in ["program", "libmodules.so"] {
        fs::copy(out.path().join(name), tree.join(name)).unwrap();
    }
    publisher.publish();
    wait_until("the program", || m.path("program").exists());
    assert_eq!(
        sh("\"$2/program\"", tree, &m, out.path()),
        format!("{expected}\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn git_clones_a_repository_in_the_mount() {
    let publisher = Publisher::new();
    let tree = publisher.tree.path();
    let work = tempfile::tempdir().unwrap();
    let history = "cd \"$3\" && git init -q -b main . && git config user.name n && \
        git config user.email e@example.org && git config commit.gpgsign false && \
        for i in $(seq 12); do cp -r \"$1/.\" . && echo $i > counter && git add -A && \
        git commit -qm \"commit $i\"; done && git gc -q && rm -rf \"$1\"/* && \
        git clone -q --bare . \"$1/project.git\"";
    for i in 0..80 {
        fs::write(tree.join(format!("f{i}")), noise(i, 3000)).unwrap();
    }
    let script = Command::new("bash")
        .args(["-euc", history, "sh"])
        .args([tree, tree, work.path()])
        .env("HOME", work.path())
        .output()
        .unwrap();
    assert!(script.status.success(), "{}", told(&script));
    fs::set_permissions(tree, fs::Permissions::from_mode(0o755)).unwrap();
    let source = publisher.publish();
    let m = TestMount::new(publisher.open(source).await, quick()).await;
    let out = tempfile::tempdir().unwrap();
    let clone = "cd \"$3\" && for how in --no-local --no-hardlinks; do \
        git clone -q $how \"$2/project.git\" clone$how && \
        git -C clone$how fsck --strict --no-progress && \
        git -C clone$how log --format=%H%n%s && git -C clone$how status --porcelain; done";
    let said = sh(clone, tree, &m, out.path());
    let head = Command::new("git")
        .arg("-C")
        .arg(work.path())
        .args(["log", "--format=%H%n%s"])
        .output()
        .unwrap();
    let history = String::from_utf8(head.stdout).unwrap();
    assert_eq!(history.lines().count(), 24);
    assert_eq!(said, history.repeat(2));
    let in_place = sh(
        "git -C \"$2/project.git\" fsck --strict",
        tree,
        &m,
        out.path(),
    );
    assert_eq!(in_place, "");
}
