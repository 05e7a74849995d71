//! The rows of docs/semantics.md, *System calls*, for reading: each call is made as a program makes it.

use std::fs::{self, File};
use std::io::{IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use rustix::fs::{Access, FlockOperation, Mode, OFlags, SeekFrom as Whence};
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;

use crate::fixture::{TestMount, World, noise, quick, wait_until};

/// A file of `content` in a mount of its own.
async fn holding(content: &[u8]) -> (World, TestMount) {
    let mut world = World::new();
    let file = world.file(content);
    let inside = world.file(b"inside");
    let dir = world.directory(vec![("inside", inside)]);
    world.publish(vec![("dir", dir), ("f", file)], 3600);
    let m = world.mount().await;
    (world, m)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_open_for_reading_works() {
    let content = noise(40, 300_000);
    let (_world, m) = holding(&content).await;
    let directory = rustix::fs::open(m.path(""), OFlags::DIRECTORY, Mode::empty()).unwrap();
    let none = Mode::empty();
    let opened = [
        ("open", rustix::fs::open(m.path("f"), OFlags::RDONLY, none)),
        (
            "openat",
            rustix::fs::openat(&directory, "f", OFlags::RDONLY, none),
        ),
        (
            "O_DIRECT",
            rustix::fs::openat(&directory, "f", OFlags::DIRECT, none),
        ),
        (
            "O_NOATIME",
            rustix::fs::open(m.path("f"), OFlags::NOATIME, none),
        ),
        // O_CREAT opens a file that exists; only creating one is refused.
        (
            "O_CREAT of a file that exists",
            rustix::fs::open(m.path("f"), OFlags::CREATE, none),
        ),
    ];
    for (call, fd) in opened {
        let mut read = Vec::new();
        File::from(fd.expect(call)).read_to_end(&mut read).unwrap();
        assert!(read == content, "{call}");
    }
    // O_PATH opens nothing and still names the file.
    let path = rustix::fs::openat(&directory, "f", OFlags::PATH, none).unwrap();
    assert_eq!(rustix::fs::fstat(&path).unwrap().st_size, 300_000);
    assert_eq!(rustix::io::read(&path, &mut [0; 1]), Err(Errno::BADF));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_read_gives_the_published_bytes() {
    let content = noise(41, 1_500_001);
    let (_world, m) = holding(&content).await;
    let file = File::open(m.path("f")).unwrap();

    let mut read = vec![0; 1000];
    assert_eq!(rustix::io::read(&file, &mut read[..]), Ok(1000));
    assert!(read == content[..1000], "read");
    assert_eq!(rustix::io::pread(&file, &mut read[..], 999_999), Ok(1000));
    assert!(read == content[999_999..1_000_999], "pread");
    let (mut one, mut two) = (vec![0; 700], vec![0; 900]);
    let mut parts = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
    assert_eq!(rustix::io::readv(&file, &mut parts), Ok(1600));
    assert!([one, two].concat() == content[1000..2600], "readv");
    assert_eq!(
        rustix::io::pread(&file, &mut read[..], 1_500_001),
        Ok(0),
        "at the end"
    );

    let sink = tempfile::NamedTempFile::new().unwrap();
    let mut at = 0;
    while rustix::fs::sendfile(sink.as_file(), &file, Some(&mut at), 1 << 20).unwrap() > 0 {}
    assert!(fs::read(sink.path()).unwrap() == content, "sendfile");

    let sink = tempfile::NamedTempFile::new().unwrap();
    let (mut from, mut to) = (0, 0);
    loop {
        let (from, to) = (Some(&mut from), Some(&mut to));
        match rustix::fs::copy_file_range(&file, from, sink.as_file(), to, 1 << 20) {
            Ok(0) => break,
            Ok(_) => {}
            // With this errno the kernel tells programs such as cp to copy by read and write.
            Err(Errno::XDEV) => {
                let mut from = File::open(m.path("f")).unwrap();
                std::io::copy(&mut from, &mut sink.as_file()).unwrap();
                break;
            }
            Err(error) => panic!("copy_file_range: {error}"),
        }
    }
    assert!(fs::read(sink.path()).unwrap() == content, "copy_file_range");

    let (out, into) = rustix::pipe::pipe().unwrap();
    let mut through = vec![0; 4000];
    let flags = SpliceFlags::empty();
    let mut at = 500_000;
    let spliced = rustix::pipe::splice(&file, Some(&mut at), &into, None, 4000, flags).unwrap();
    File::from(out).read_exact(&mut through[..spliced]).unwrap();
    assert!(
        spliced > 0 && through[..spliced] == content[500_000..500_000 + spliced],
        "splice"
    );

    let mut file = file;
    for (whence, expected) in [
        (SeekFrom::Start(7), 7),
        (SeekFrom::Current(3), 10),
        (SeekFrom::End(-1), 1_500_000),
    ] {
        assert_eq!(file.seek(whence).unwrap(), expected);
    }
    let beyond = rustix::fs::seek(&file, Whence::Data(1_500_001));
    assert_eq!(beyond, Err(Errno::NXIO));
}

#[tokio::test(flavor = "multi_thread")]
async fn syncing_closing_and_locking_succeed() {
    let (world, m) = holding(b"content").await;
    let (one, two) = (
        File::open(m.path("f")).unwrap(),
        File::open(m.path("f")).unwrap(),
    );
    for _ in 0..2 {
        assert_eq!(rustix::fs::fsync(&one), Ok(()), "fsync");
        assert_eq!(rustix::fs::fdatasync(&one), Ok(()), "fdatasync");
        let directory = File::open(m.path("dir")).unwrap();
        assert_eq!(rustix::fs::fsync(&directory), Ok(()), "fsync, directory");
        assert_eq!(rustix::fs::fdatasync(&directory), Ok(()));
    }
    let lock = FlockOperation::NonBlockingLockExclusive;
    assert_eq!(rustix::fs::flock(&one, lock), Ok(()));
    assert_eq!(rustix::fs::flock(&two, lock), Err(Errno::AGAIN), "flock");
    // Another mount of the same volume does not see the lock: the kernel keeps locks for each mount.
    let other = world.mount().await;
    let elsewhere = File::open(other.path("f")).unwrap();
    assert_eq!(rustix::fs::flock(&elsewhere, lock), Ok(()));
    drop(one); // close lets go, also that of a process that another test has just started
    wait_until("the lock is free", || {
        rustix::fs::flock(&two, lock) == Ok(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn access_goes_by_the_published_mode() {
    let mut world = World::new();
    let with_mode = |world: &mut World, mode| {
        let mut file = world.file(b"x");
        file.mode = mode;
        file
    };
    let (run, plain) = (with_mode(&mut world, 0o755), with_mode(&mut world, 0o644));
    let closed = with_mode(&mut world, 0o000);
    world.publish(
        vec![("closed", closed), ("plain", plain), ("run", run)],
        3600,
    );
    let m = world.mount().await;
    let access = |name: &str, how| rustix::fs::access(m.path(name), how);
    assert_eq!(access("run", Access::EXEC_OK), Ok(()));
    assert_eq!(access("plain", Access::READ_OK), Ok(()));
    // Not even root executes a file without an execute bit.
    assert_eq!(access("plain", Access::EXEC_OK), Err(Errno::ACCESS));
    for name in ["run", "plain", ""] {
        assert_eq!(access(name, Access::WRITE_OK), Err(Errno::ROFS), "{name}");
    }
    if rustix::process::geteuid().is_root() {
        // A user without root's rights, through a mount that others may enter.
        let options = mount::MountOptions {
            allow_other: true,
            ..quick()
        };
        let shared = TestMount::new(world.open().await, options).await;
        let read = |name: &str| {
            let inside = shared.path(name);
            Command::new("setpriv")
                .args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"])
                .arg(inside)
                .stderr(Stdio::null())
                .status()
                .unwrap()
                .success()
        };
        assert!(read("plain"));
        assert!(!read("closed"), "the published bits hold for others");
    } else {
        assert_eq!(access("closed", Access::READ_OK), Err(Errno::ACCESS));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn links_are_read_as_published() {
    let long: &'static str = Box::leak("x/".repeat(2000).into_boxed_str());
    let mut world = World::new();
    let entries = ["a", "b", "c", "long"];
    let targets = ["../up", "/etc/passwd", "no such place", long];
    let links = entries
        .iter()
        .zip(targets)
        .map(|(name, target)| (*name, crate::fixture::symlink(target)))
        .collect();
    world.publish(links, 3600);
    let m = world.mount().await;
    for (name, target) in entries.iter().zip(targets) {
        let read = rustix::fs::readlink(m.path(name), Vec::new()).unwrap();
        assert_eq!(read.to_bytes(), target.as_bytes(), "readlink {name}");
    }
    // The kernel resolves the target of a link, not the mount.
    assert_eq!(
        fs::read(m.path("b")).unwrap(),
        fs::read("/etc/passwd").unwrap()
    );
    let outside = tempfile::tempdir().unwrap();
    symlink(m.path("b"), outside.path().join("link")).unwrap();
    assert!(fs::read(outside.path().join("link")).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn statfs_reports_no_free_space_and_the_longest_name() {
    let (_world, m) = holding(b"content").await;
    for name in ["", "f", "dir"] {
        let statfs = rustix::fs::statfs(m.path(name)).unwrap();
        assert_eq!((statfs.f_bfree, statfs.f_bavail, statfs.f_ffree), (0, 0, 0));
        assert_eq!(statfs.f_namelen, 255);
        let statvfs = rustix::fs::statvfs(m.path(name)).unwrap();
        let read_only = rustix::fs::StatVfsMountFlags::RDONLY;
        assert!(statvfs.f_flag.contains(read_only));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ioctl_is_enotty() {
    let (_world, m) = holding(b"content").await;
    let file = File::open(m.path("f")).unwrap();
    let directory = File::open(m.path("dir")).unwrap();
    for fd in [file.as_fd(), directory.as_fd()] {
        let terminal = rustix::termios::tcgetattr(fd).map(drop);
        assert_eq!(terminal, Err(Errno::NOTTY), "ioctl TCGETS");
        let device = rustix::fs::ioctl_blksszget(fd).map(drop);
        assert_eq!(device, Err(Errno::NOTTY), "ioctl BLKSSZGET");
        let flags = rustix::fs::ioctl_getflags(fd).map(drop);
        assert_eq!(flags, Err(Errno::NOTTY), "ioctl FS_IOC_GETFLAGS");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inotify_does_not_report_updates() {
    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
    let (mut world, m) = holding(b"content").await;
    let watch = inotify::init(CreateFlags::NONBLOCK).unwrap();
    let changes = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MODIFY
        | WatchFlags::MOVE
        | WatchFlags::ATTRIB;
    for place in ["", "f", "dir"] {
        inotify::add_watch(&watch, m.path(place), changes).unwrap();
    }
    let file = world.file(b"another");
    let new = world.file(b"new");
    world.publish(vec![("f", file), ("new", new)], 3600);
    m.wait_for(2);
    wait_until("the update", || m.path("new").exists());
    assert_eq!(m.read("f"), b"another");
    let mut room = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = Reader::new(&watch, &mut room);
    match events.next() {
        Err(Errno::AGAIN) => {}
        Err(error) => panic!("{error}"),
        Ok(event) => {
            let about: ReadFlags = event.events();
            panic!("inotify told {about:?} of {:?}", event.file_name());
        }
    }
    // The control: on a disk the same watch reports it.
    let disk = tempfile::tempdir().unwrap();
    inotify::add_watch(&watch, disk.path(), changes).unwrap();
    fs::write(disk.path().join("new"), "x").unwrap();
    assert!(Reader::new(&watch, &mut room).next().is_ok());
}

/// A shell in some working directory that runs commands.
struct Shell {
    child: std::process::Child,
    answers: std::io::BufReader<std::process::ChildStdout>,
}

impl Shell {
    fn in_directory(place: &std::path::Path) -> Shell {
        let mut child = Command::new("sh")
            .current_dir(place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = std::io::BufReader::new(child.stdout.take().unwrap());
        Shell { child, answers }
    }

    /// The output of a command, and its exit status.
    fn does(&mut self, command: &str) -> String {
        use std::io::BufRead;
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{{ {command}\n}} 2>&1; echo \"[$?]\"; echo END").unwrap();
        let mut said = String::new();
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "{said}");
            if line == "END\n" {
                return said;
            }
            said.push_str(&line);
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_working_directory_follows_updates() {
    let mut world = World::new();
    let file = world.file(b"one\n");
    let inner = world.directory(vec![("file", file.clone())]);
    let dir = world.directory(vec![("inner", inner.clone())]);
    world.publish(vec![("dir", dir), ("top", file)], 3600);
    let m = world.mount().await;
    // current_dir is chdir(2); pwd -P is getcwd(2).
    let mut shell = Shell::in_directory(&m.path("dir/inner"));
    let inner_path = m.path("dir/inner");
    let here = format!("{}\n[0]\n", inner_path.display());
    assert_eq!(shell.does("/bin/pwd -P"), here, "getcwd");
    assert_eq!(shell.does("cat file ../../top"), "one\none\n[0]\n");
    assert_eq!(shell.does("cd ../inner && /bin/pwd -P"), here, "chdir ..");

    let file = world.file(b"two\n");
    let inner = world.directory(vec![("file", file.clone()), ("more", file.clone())]);
    let dir = world.directory(vec![("inner", inner)]);
    world.publish(vec![("dir", dir), ("top", file.clone())], 3600);
    m.wait_for(2);
    wait_until("the update", || m.path("dir/inner/more").exists());
    // Names in the kernel's cache are looked up again a moment later.
    wait_until("the same in the working directory", || {
        shell.does("cat file more ../../top") == "two\ntwo\ntwo\n[0]\n"
    });
    assert_eq!(shell.does("ls"), "file\nmore\n[0]\n");
    assert_eq!(shell.does("/bin/pwd -P"), here, "getcwd");

    world.publish(vec![("top", file)], 3600);
    m.wait_for(3);
    wait_until("the end of the directory", || !m.path("dir").exists());
    let gone = shell.does("cat file");
    assert!(gone.contains("No such file"), "{gone}");
    let gone = shell.does("ls");
    assert!(gone.contains("No such file") || gone == "[0]\n", "{gone}");
}
