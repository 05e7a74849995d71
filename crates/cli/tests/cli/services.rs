//! Service managers: the sockets that they pass, and the messages that they get. The manager is a shell that
//! passes descriptors from 3 on, or systemd's own program if it is installed.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::metrics;
use crate::support::{Home, Mounted, Ran, skipped, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// A service that is killed on drop.
pub struct Service(pub Child);

impl Service {
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    pub fn ends(&mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The binary, started by a shell that passes three sockets. Its output goes into the files `out` and `err`.
pub fn activated(home: &Home, sockets: [OwnedFd; 3], names: &str, args: &[&str]) -> Command {
    let [a, b, c] = sockets;
    let script = "exec 3<&0 4>&1 5>&2 </dev/null >out 2>err\n\
        LISTEN_PID=$$ LISTEN_FDS=3 exec \"$0\" \"$@\"";
    let binary = env!("CARGO_BIN_EXE_bulla");
    let mut command = Command::new("sh");
    let words = ["-c", script, binary];
    command.args(words).args(args);
    for (name, value) in home.command::<&str>(&[]).get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command
        .env("LISTEN_FDNAMES", names)
        .current_dir(home.path(""))
        .stdin(a)
        .stdout(b)
        .stderr(c);
    command
}

pub fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An address where nobody listens yet.
fn free() -> SocketAddr {
    ([127, 0, 0, 1], sim::port::own()).into()
}

#[test]
fn sockets_are_served_by_their_names_and_outlive_the_service() {
    let home = Home::new();
    let volume = home.published();
    let [(bulla, bulla_at), (http, http_at), (metrics, metrics_at)] =
        [listener(), listener(), listener()];
    let start = || {
        let sockets = [&http, &metrics, &bulla].map(|it| it.try_clone().unwrap().into());
        let args = ["--json", "serve", "repo"];
        let mut command = activated(&home, sockets, "http:metrics:bulla", &args);
        Service(command.spawn().unwrap())
    };
    let by_bulla = format!("{volume}@bulla://{bulla_at}");
    let by_http = format!("{volume}@http://{http_at}/{volume}");
    // Two services in a row on the same sockets, each with a request before it starts.
    for _ in 0..2 {
        let mut early = home.command(&["cat", &by_bulla, "a", "--deadline", "60s"]);
        let early = early.stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let mut service = start();
        let early = Ran::of(early.wait_with_output().unwrap()).ends(0);
        assert_eq!(early.out, "hello\n");
        let late = home.run(&["cat", &by_http, "sub/again"]).ends(0);
        assert_eq!(late.out, "hello\n");
        let page = metrics::get(&metrics_at.to_string());
        assert!(page.contains("bulla_serve_accepted_total "), "{page}");
        assert!(!page.contains("bulla_serve_accepted_total 0\n"), "{page}");
        service.signal(Signal::TERM);
        assert_eq!(service.ends(), Some(0));
        let told = fs::read_to_string(home.path("out")).unwrap();
        assert!(
            told.contains(&by_bulla) && told.contains(&by_http),
            "{told}"
        );
        assert!(told.contains(&metrics_at.to_string()), "{told}");
    }
}

#[test]
fn unusable_socket_is_refused() {
    let home = Home::new();
    home.published();
    let datagrams = || UdpSocket::bind("127.0.0.1:0").unwrap().into();
    let connected = || {
        let (listener, at) = listener();
        let stream = TcpStream::connect(at).unwrap();
        drop(listener);
        stream.into()
    };
    let stream = || listener().0.into();
    let cases: [(OwnedFd, &str, &[&str], &str); 5] = [
        (datagrams(), "bulla:bulla:bulla", &[], "socket 1 "),
        (connected(), "bulla:bulla:bulla", &[], "does not listen"),
        (stream(), "bulla:http:wine", &[], "`wine`"),
        (stream(), "bulla:http", &[], "2 names"),
        (
            stream(),
            "bulla:http:http",
            &["--listen", "127.0.0.1:0"],
            "--listen",
        ),
    ];
    for (first, names, more, told) in cases {
        let args = [&["serve", "repo"], more].concat();
        let mut command = activated(&home, [first, stream(), stream()], names, &args);
        let mut service = Service(command.spawn().unwrap());
        assert_eq!(service.ends(), Some(2), "{names}");
        let err = fs::read_to_string(home.path("err")).unwrap();
        assert!(err.contains(told) && err.contains("hint: "), "{err}");
    }
}

#[test]
fn systemd_socket_activate_starts_the_server() {
    let program = "/usr/bin/systemd-socket-activate";
    if !Path::new(program).exists() {
        return skipped("systemd-socket-activate", "it is not installed");
    }
    let home = Home::new();
    let volume = home.published();
    let [bulla, http] = [free(), free()];
    let mut command = home.command::<&str>(&[]);
    let mut command = {
        let mut it = Command::new(program);
        for (name, value) in command.env("BULLA_LOG", "info").get_envs() {
            let (name, value) = (name.to_str().unwrap(), value.unwrap_or_default());
            it.arg(format!("--setenv={name}={}", value.to_str().unwrap()));
        }
        it
    };
    for at in [bulla, http] {
        command.arg(format!("--listen={at}"));
    }
    command.args(["--fdname=bulla:http", env!("CARGO_BIN_EXE_bulla")]);
    let repo = home.path("repo");
    command.args(["serve", repo.to_str().unwrap()]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut service = Service(command.spawn().unwrap());
    let listening = format!(":{:04X} 00000000:0000 0A", http.port());
    wait_until("the service listens", || {
        let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
        sockets.contains(&listening)
    });
    for source in [
        format!("{volume}@http://{http}"),
        format!("{volume}@bulla://{bulla}"),
    ] {
        assert_eq!(home.run(&["cat", &source, "a"]).ends(0).out, "hello\n");
    }
    service.signal(Signal::TERM);
    assert_eq!(service.ends(), Some(0));
}

/// The next message to the manager.
fn told(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let n = socket.recv(&mut bytes).expect("a message to the manager");
    String::from_utf8(bytes[..n].to_vec()).unwrap()
}

fn manager(home: &Home) -> UnixDatagram {
    let socket = UnixDatagram::bind(home.path("notify")).unwrap();
    let patience = Some(Duration::from_secs(60));
    socket.set_read_timeout(patience).unwrap();
    socket
}

#[test]
fn a_server_says_when_it_is_ready_and_when_it_ends() {
    let home = Home::new();
    let volume = home.published();
    let manager = manager(&home);
    let at = free();
    let mut command = home.command(&["-q", "serve", "repo", "--listen", &at.to_string()]);
    command.env("NOTIFY_SOCKET", home.path("notify"));
    let mut service = Service(command.stdout(Stdio::null()).spawn().unwrap());
    assert_eq!(told(&manager), "READY=1\nSTATUS=volumes served: 1");
    // After READY=1 the server listens.
    home.run(&["cat", &format!("{volume}@bulla://{at}"), "a"])
        .ends(0);
    service.signal(Signal::TERM);
    assert_eq!(told(&manager), "STOPPING=1");
    assert_eq!(service.ends(), Some(0));
}

#[test]
fn foreground_mount_reports_when_it_is_ready() {
    if !Path::new("/dev/fuse").exists() {
        return skipped("mount", "no /dev/fuse");
    }
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    let manager = manager(&home);
    fs::create_dir(home.path("mnt")).unwrap();
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let mount = |more: &[&str]| {
        let args = [&["-q", "mount", &source, "mnt"], more].concat();
        let mut command = home.command(&args);
        command.env("NOTIFY_SOCKET", home.path("notify"));
        Service(command.spawn().unwrap())
    };
    // A mount in the background is not a service and sends nothing to the manager.
    assert_eq!(mount(&[]).ends(), Some(0));
    home.run(&["umount", "mnt"]).ends(0);
    let mut service = mount(&["--foreground"]);
    let ready = told(&manager);
    assert!(
        ready.starts_with("READY=1\nSTATUS=version 1 is mounted on "),
        "{ready}"
    );
    assert_eq!(fs::read(home.path("mnt/a")).unwrap(), b"hello\n");
    service.signal(Signal::TERM);
    assert_eq!(told(&manager), "STOPPING=1");
    assert_eq!(service.ends(), Some(0));
}
