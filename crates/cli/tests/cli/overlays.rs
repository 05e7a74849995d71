//! A mount below overlayfs, in each mode that docs/operations/containers.md names, and where it may not be.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Home, Mounted, Tmpfs, noise, skipped};

/// An overlay that is unmounted on drop.
struct Overlay<'a>(&'a Path);

impl<'a> Overlay<'a> {
    fn mount(options: &str, on: &'a Path) -> Option<Overlay<'a>> {
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "overlay", "overlay", "-o", options])
            .arg(on);
        let made = mount.stderr(Stdio::null()).status();
        let made = made.is_ok_and(|status| status.success());
        made.then_some(Overlay(on))
    }
}

impl Drop for Overlay<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn overlay_above_a_version_can_be_written_in_each_mode_and_the_volume_stays_as_it_is() {
    if !Path::new("/dev/fuse").exists() {
        return skipped("overlayfs", "no /dev/fuse");
    }
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    for dir in ["mnt", "both"] {
        fs::create_dir(home.path(dir)).unwrap();
    }
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    home.run(&["mount", &source, "mnt", "--at", "1"]).ends(0);
    let Some(_upper) = Tmpfs::of(&home, "upper", 16 << 20) else {
        return skipped("overlayfs", "tmpfs cannot be mounted");
    };
    let (lower, both) = (home.path("mnt"), home.path("both"));
    let mut tried = 0;
    for mode in [
        "",
        "index=on",
        "index=off",
        "metacopy=on",
        "redirect_dir=on",
        "redirect_dir=nofollow",
        "xino=on",
        "xino=off",
        "index=on,nfs_export=on",
        "userxattr",
        "volatile",
        "uuid=on",
    ] {
        let (upper, work) = (home.path("upper/u"), home.path("upper/w"));
        for dir in [&upper, &work] {
            let _ = fs::remove_dir_all(dir);
            fs::create_dir(dir).unwrap();
        }
        let [lower, upper, work] = [&lower, &upper, &work].map(|path| path.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work},{mode}");
        let Some(_overlay) = Overlay::mount(options.trim_end_matches(','), &both) else {
            skipped(
                "overlayfs",
                &format!("this kernel refuses the mode `{mode}`"),
            );
            continue;
        };
        tried += 1;
        let big = both.join("sub/deep/big");
        assert_eq!(fs::read(&big).unwrap(), noise(1, 700_000), "{mode}");
        let file = fs::File::options().write(true).open(&big).unwrap();
        file.set_len(3).unwrap();
        fs::write(both.join("a"), b"changed").unwrap();
        fs::remove_file(both.join("sub/again")).unwrap();
        fs::rename(both.join("sub/empty"), both.join("moved")).unwrap();
        assert_eq!(fs::read(&big).unwrap(), noise(1, 3), "{mode}");
        assert_eq!(fs::read(both.join("a")).unwrap(), b"changed", "{mode}");
        fs::remove_dir_all(both.join("sub")).unwrap();
        assert!(!both.join("sub").exists(), "{mode}");
        let below = home.path("mnt");
        assert_eq!(fs::read(below.join("a")).unwrap(), b"hello\n", "{mode}");
        assert!(below.join("sub/again").exists(), "{mode}");
    }
    if tried == 0 {
        skipped("overlayfs", "it cannot be mounted here");
    }
}
