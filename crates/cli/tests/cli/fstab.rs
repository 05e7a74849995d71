//! Lines of fstab that mount(8) mounts with `mount.bulla`. mount(8) looks for it in /sbin only, so each test
//! runs in a mount namespace with an /sbin of its own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::{Home, Ran, skipped};

/// Runs a script with `mount.bulla` in /sbin. `$mnt` is a directory, `$fstab` a file with this line.
fn with_fstab(home: &Home, line: &str, script: &str) -> Option<Ran> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        skipped("mount(8)", "it needs root and /dev/fuse");
        return None;
    }
    let namespace = ["--mount", "--propagation", "private"];
    let mut can = Command::new("unshare");
    if !can
        .args(namespace)
        .arg("true")
        .status()
        .is_ok_and(|it| it.success())
    {
        skipped("mount(8)", "no mount namespaces");
        return None;
    }
    for directory in ["mnt", "sbin"] {
        fs::create_dir_all(home.path(directory)).unwrap();
    }
    let link = home.path("sbin/mount.bulla");
    if !link.exists() {
        symlink(env!("CARGO_BIN_EXE_bulla"), link).unwrap();
    }
    fs::write(home.path("fstab"), format!("{line}\n")).unwrap();
    let script = format!("mount --bind sbin /sbin\n{script}");
    let mut command = Command::new("unshare");
    command.args(namespace).args(["bash", "-uc", &script]);
    for (name, value) in home.command::<&str>(&[]).get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
        .env("mnt", home.path("mnt"))
        .env("fstab", home.path("fstab"))
        .env("bulla", env!("CARGO_BIN_EXE_bulla"))
        .current_dir(home.path(""));
    Some(Ran::of(command.output().unwrap()))
}

fn line(home: &Home, source: &str, options: &str) -> String {
    format!(
        "{source} {} bulla {options} 0 0",
        home.path("mnt").display()
    )
}

#[test]
fn a_line_of_fstab_is_mounted_by_mount() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    // Another user reads the mount, so the directories above must be accessible.
    let everybody = fs::Permissions::from_mode(0o755);
    fs::set_permissions(home.path(""), everybody).unwrap();
    let options = "_netdev,nofail,noatime,x-systemd.automount,allow_other,refresh=1s,deadline=10s";
    let script = r#"
        set -e
        mount --fstab "$fstab" "$mnt"
        cat "$mnt/a"
        setpriv --reuid=65534 --regid=65534 --clear-groups cat "$mnt/sub/again"
        "$bulla" status "$mnt" >status
        grep -F " $mnt " /proc/self/mounts
        if touch "$mnt/new" 2>/dev/null; then echo "written"; fi
        umount "$mnt"
        for _ in $(seq 100); do ls run/bulla/*.sock >/dev/null 2>&1 || break; sleep 0.05; done
        ls run/bulla
        if grep -qF " $mnt " /proc/self/mounts; then echo "left"; fi
    "#;
    let Some(ran) = with_fstab(&home, &line(&home, &source, options), script) else {
        return;
    };
    let ran = ran.ends(0);
    let told: Vec<&str> = ran.out.lines().collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(told[..2], ["hello", "hello"]);
    let table = told[2];
    assert!(
        table.contains("ro,nosuid,nodev") && table.contains("allow_other"),
        "{table}"
    );
    let status = fs::read_to_string(home.path("status")).unwrap();
    assert!(status.contains("mnt"), "{status}");
}

#[test]
fn wrong_lines_are_refused_with_a_reason() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    let wrong = line(&home, &source, "sunshine");
    let Some(ran) = with_fstab(&home, &wrong, "mount --fstab \"$fstab\" \"$mnt\"") else {
        return;
    };
    let ran = ran.ends(2);
    assert!(
        ran.err.contains("unknown mount option `sunshine`"),
        "{}",
        ran.err
    );
    // `-f` does everything except mounting, `-s` accepts unknown options.
    let script = "mount -f --fstab \"$fstab\" \"$mnt\" 2>/dev/null; echo $?\n\
        mount -f -s --fstab \"$fstab\" \"$mnt\"; echo $?\n\
        ls \"$mnt\"";
    let ran = with_fstab(&home, &wrong, script).unwrap().ends(0);
    assert_eq!(ran.out, "2\n0\n", "{}", ran.err);
}

#[test]
fn noexec_is_applied_and_unsupported_options_are_refused() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    let program = home.path("tree/program");
    fs::write(&program, "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    home.publish().ends(0);
    let script = r#"
        mount --fstab "$fstab" "$mnt" || exit
        "$mnt/program"; echo "$?"
        cat "$mnt/a"
        umount "$mnt"
    "#;
    let Some(ran) = with_fstab(
        &home,
        &line(&home, &source, "sync,relatime,lazytime"),
        script,
    ) else {
        return;
    };
    assert_eq!(ran.ends(0).out, "ran\n0\nhello\n");
    let ran = with_fstab(&home, &line(&home, &source, "noexec"), script).unwrap();
    assert_eq!(ran.ends(0).out, "126\nhello\n");
    let ran = with_fstab(&home, &line(&home, &source, "nosymfollow"), script).unwrap();
    let ran = ran.ends(2);
    assert!(ran.err.contains("is not supported"), "{}", ran.err);
}
