//! Programs that people use, in a mount of a shared volume by one device; another device sees what they made.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::shared_mount::run;
use crate::shared_mount_lab::{Mount, can_mount, two_devices};
use crate::support::{noise, skipped, wait_until};

/// What a program does on one device in a directory of its own, and what must then hold there on the other.
struct Case {
    name: &'static str,
    /// Programs that it needs.
    needs: &'static [&'static str],
    here: &'static str,
    there: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "sed in place",
        needs: &["sed"],
        here: "printf 'one\\ntwo\\n' > f && chmod 640 f && sed -i s/two/three/ f",
        there: "test \"$(cat f)\" = \"$(printf 'one\\nthree')\" && test $(stat -c %a f) = 640 && test $(ls | wc -l) = 1",
    },
    Case {
        name: "rsync with its temporary files, and in place",
        needs: &["rsync"],
        here: "rsync -a \"$DATA\"/ copy && rsync -a \"$DATA\"/ copy && echo more >> copy/large && \
               rsync -a --inplace --no-whole-file --ignore-times \"$DATA\"/ copy && \
               test -z \"$(rsync -ain \"$DATA\"/ copy)\"",
        there: "diff -r \"$DATA\" copy && test -z \"$(rsync -ain \"$DATA\"/ copy)\"",
    },
    Case {
        name: "tar, both ways",
        needs: &["tar"],
        here: "tar -C \"$DATA\" -cf a.tar . && mkdir x && tar -C x -xf a.tar",
        there: "diff -r \"$DATA\" x && tar -df a.tar -C x",
    },
    Case {
        name: "cp of files with holes",
        needs: &["cp"],
        here: "truncate -s 8M sparse && printf end | dd of=sparse bs=1 seek=5000000 conv=notrunc status=none && \
               cp --sparse=always sparse copy && cp -a --reflink=auto \"$DATA\" tree",
        there: "cmp sparse copy && test $(stat -c %s copy) = 8388608 && diff -r \"$DATA\" tree",
    },
    Case {
        name: "an editor that replaces by rename, with a swap file and a backup",
        needs: &["vim"],
        here: "echo old > f && vim -u NONE -es -c 'set backup backupskip= writebackup swapfile' -c '%s/old/new/' -c wq f",
        there: "test \"$(cat f)\" = new && test \"$(cat f~)\" = old && test -z \"$(ls -A | grep swp)\"",
    },
    Case {
        name: "Python, which looks at the time of directories",
        needs: &["python3"],
        here: "mkdir pkg && echo 'x = 1' > pkg/__init__.py && python3 -c 'import pkg, sys; assert pkg.x == 1' && \
               python3 -c \"$MORE\"",
        there: "python3 -c 'import pkg.later as l; assert l.y == 2'",
    },
    Case {
        name: "SQLite with a write-ahead log on one device",
        needs: &["sqlite3"],
        here: "sqlite3 db 'pragma journal_mode=wal; create table t (x);' && \
               for i in 1 2 3 4 5 6; do sqlite3 db \"insert into t values ($i)\"; done && \
               sqlite3 db 'pragma wal_checkpoint(truncate)' && sqlite3 db 'pragma journal_mode=delete'",
        there: "test \"$(sqlite3 db 'select sum(x) from t; pragma integrity_check')\" = \"$(printf '21\\nok')\"",
    },
    Case {
        name: "a compiler and a linker that maps its output",
        needs: &["gcc", "make"],
        here: "printf 'int main(void) { return 7; }\\n' > m.c && printf 'm: m.o\\n\\tgcc -o m m.o\\n' > Makefile && \
               make -s && make -q",
        there: "code=0; ./m || code=$?; test $code = 7 && make -q",
    },
    Case {
        name: "git with rebase, worktree and gc",
        needs: &["git"],
        here: "git init -q -b main r && cd r && for i in 1 2 3; do echo $i > f$i && git add . && git commit -qm c$i; done && \
               git checkout -qb side HEAD~1 && echo s > s && git add . && git commit -qm s && git rebase -q main && \
               git worktree add -q ../w main && git gc -q && git fsck --strict",
        there: "test \"$(git -C r log --format=%s | tr '\\n' ' ')\" = 's c3 c2 c1 ' && cat w/f3 && \
                test -z \"$(git -C r status --porcelain)\"",
    },
    Case {
        name: "a Debian package",
        needs: &["dpkg-deb"],
        here: "mkdir -p p/DEBIAN p/usr/share && cp \"$DATA\"/small p/usr/share/ && \
               printf 'Package: p\\nVersion: 1\\nArchitecture: all\\nMaintainer: a <a@example.org>\\nDescription: d\\n' > \
               p/DEBIAN/control && dpkg-deb -b p p.deb > /dev/null",
        there: "mkdir \"$OUT\"/deb && dpkg-deb -x p.deb \"$OUT\"/deb && cmp \"$OUT\"/deb/usr/share/small \"$DATA\"/small",
    },
    Case {
        name: "restic with its repository in the mount",
        needs: &["restic"],
        here: "export RESTIC_PASSWORD=x && restic -q init -r repo && restic -q -r repo backup \"$DATA\"",
        there: "export RESTIC_PASSWORD=x && restic -q -r repo check && \
                restic -q -r repo restore latest --target \"$OUT\"/restic && diff -r \"$DATA\" \"$OUT\"/restic/\"$DATA\"",
    },
    Case {
        name: "borg with the mount as its source, which reads no file twice",
        needs: &["borg"],
        // It always reads the files with the newest time again.
        here: "cp -r \"$DATA\" src && sleep 1 && echo last > src/last && \
               export BORG_BASE_DIR=\"$OUT\"/b BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes && \
               borg init -e none \"$OUT\"/repo && borg create \"$OUT\"/repo::one src && \
               borg create --list --filter AM \"$OUT\"/repo::two src 2> \"$OUT\"/changed && rm src/last && \
               cat \"$OUT\"/changed && test -z \"$(grep large \"$OUT\"/changed)\"",
        there: "diff -r \"$DATA\" src",
    },
];

fn has(program: &str) -> bool {
    let mut asked = Command::new("sh");
    asked.args(["-c", "command -v \"$0\"", program]);
    asked.stdout(Stdio::null()).status().unwrap().success()
}

#[test]
fn programs_work_on_one_device_and_another_one_sees_it() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    let data = ada.path("data");
    fs::create_dir_all(data.join("sub/deep")).unwrap();
    fs::write(data.join("large"), noise(5, 700_000)).unwrap();
    fs::write(data.join("small"), "small\n").unwrap();
    fs::write(data.join("sub/deep/x"), noise(6, 3000)).unwrap();
    std::os::unix::fs::symlink("../small", data.join("sub/link")).unwrap();
    fs::create_dir(ada.path("out")).unwrap();
    // A module that is made while the program runs is found: the time of the directory tells.
    let more = "import pkg, importlib, time\n\
                open('pkg/later.py', 'w').write('y = 2\\n')\n\
                importlib.invalidate_caches()\n\
                import pkg.later\n";
    let with = format!(
        "export HOME={home} DATA={data} OUT={out} MORE=\"{more}\"\n",
        home = ada.path("").display(),
        data = data.display(),
        out = ada.path("out").display(),
    );
    for (number, case) in CASES.iter().enumerate() {
        if let Some(program) = case.needs.iter().find(|it| !has(it)) {
            skipped(case.name, &format!("{program} is not installed"));
            continue;
        }
        let began = Instant::now();
        let dir = format!("case{number}");
        fs::create_dir(a.path(&dir)).unwrap();
        run(&a.path(&dir), &format!("{with}{}", case.here));
        // Names may be as old as `--attr`.
        wait_until("the names", || b.path(&dir).exists());
        std::thread::sleep(Duration::from_secs(1));
        run(&b.path(&dir), &format!("{with}{}", case.there));
        eprintln!("{:5.1} s  {}", began.elapsed().as_secs_f64(), case.name);
    }
    a.end();
    b.end();
    ada.run(&["verify", "notes", "--deadline", "60s"]).ends(0);
}

#[test]
fn what_one_device_appends_the_other_follows() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    fs::write(a.path("log"), "begin\n").unwrap();
    wait_until("the name", || b.path("log").exists());
    let out = fs::File::create(ben.path("followed")).unwrap();
    let mut tail = Command::new("tail")
        .args(["-s", "0.2", "---disable-inotify", "-f"])
        .arg(b.path("log"))
        .stdout(out)
        .spawn()
        .unwrap();
    for line in 0..5 {
        run(&a.path(""), &format!("echo line {line} >> log"));
        std::thread::sleep(Duration::from_millis(300));
    }
    let expected = "begin\nline 0\nline 1\nline 2\nline 3\nline 4\n";
    let followed = || fs::read_to_string(ben.path("followed")).unwrap();
    wait_until("all lines", || followed() == expected);
    tail.kill().unwrap();
    tail.wait().unwrap();
    a.end();
    b.end();
}

#[test]
fn mail_that_two_devices_deliver_into_one_maildir_is_there_once() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    run(&a.path(""), "mkdir -p m/tmp m/new m/cur");
    wait_until("the names", || b.path("m/cur").exists());
    let deliver = |mount: &Path, who: &str| {
        let line = format!(
            "for i in $(seq 25); do echo mail $i > m/tmp/$i.{who} && ln m/tmp/$i.{who} m/new/$i.{who} && rm m/tmp/$i.{who}; done"
        );
        run(mount, &line);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| deliver(&a.path(""), "ada"));
        scope.spawn(|| deliver(&b.path(""), "ben"));
        // A reader moves what is new, as mail programs do.
        scope.spawn(|| {
            let begin = Instant::now();
            while fs::read_dir(a.path("m/cur")).unwrap().count() < 50 {
                assert!(begin.elapsed() < Duration::from_secs(60));
                for mail in fs::read_dir(a.path("m/new")).unwrap() {
                    let name = mail.unwrap().file_name();
                    let name = name.to_str().unwrap();
                    fs::rename(
                        a.path(&format!("m/new/{name}")),
                        a.path(&format!("m/cur/{name}:2,S")),
                    )
                    .unwrap();
                }
            }
        });
    });
    std::thread::sleep(Duration::from_secs(1));
    for mount in [&a, &b] {
        let count = "ls m/cur | wc -l; ls m/tmp m/new | grep -c mail || true; cat m/cur/* | sort | uniq -c | awk '{print $1}' | sort -u";
        assert_eq!(run(&mount.path(""), count), "50\n0\n2\n");
    }
    a.end();
    b.end();
}
