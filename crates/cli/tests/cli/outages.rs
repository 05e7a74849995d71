//! Mirrors that are mute, and outages of the only server, with the real binary, natively and over HTTP: what is read
//! comes as from a good mirror, or waits until its deadline.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Home, Mounted, Ran, Server, at_terminal, noise, skipped, wait_until};

/// What anything takes at most that waits for no mute mirror. With 8 of them it took 22 s before.
const PROMPT: Duration = Duration::from_secs(12);
const FILES: usize = 12;

fn name(n: usize) -> String {
    format!("f{n:02}")
}

fn filled() -> (Home, String) {
    let home = Home::new();
    fs::create_dir_all(home.path("tree")).unwrap();
    for n in 0..FILES {
        fs::write(home.path("tree").join(name(n)), noise(n as u64, 300_000)).unwrap();
    }
    // Nothing of these is fetched ahead while others are read.
    for apart in ["x1", "x2"] {
        fs::create_dir(home.path("tree").join(apart)).unwrap();
        fs::write(
            home.path("tree").join(apart).join("large"),
            noise(99, 3_000_000),
        )
        .unwrap();
    }
    let volume = home.published();
    (home, volume)
}

/// Places that never answer: every second one takes connections, and the others drop every packet.
struct Mute {
    listeners: Vec<TcpListener>,
    /// They fill the queues of those that drop packets.
    _queued: Vec<TcpStream>,
}

impl Mute {
    fn new(count: usize) -> Mute {
        let (mut listeners, mut queued) = (Vec::new(), Vec::new());
        for n in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            if n % 2 == 1 {
                rustix::net::listen(&listener, 0).unwrap();
                let address = listener.local_addr().unwrap();
                let patience = Duration::from_millis(50);
                while let Ok(stream) = TcpStream::connect_timeout(&address, patience) {
                    queued.push(stream);
                }
            }
            listeners.push(listener);
        }
        Mute {
            listeners,
            _queued: queued,
        }
    }

    fn places(&self, scheme: &str) -> Vec<String> {
        let addresses = self.listeners.iter().map(|it| it.local_addr().unwrap());
        addresses.map(|it| format!("{scheme}://{it}")).collect()
    }
}

/// A server, and its location in a scheme.
fn serve(home: &Home, port: u16, scheme: &str) -> (Server, String) {
    let other = if port == 0 { 0 } else { free_port() };
    let (native, http) = match scheme {
        "bulla" => (port, other),
        _ => (other, port),
    };
    let http = if http == 0 { free_port() } else { http };
    let places = [
        "--listen",
        &format!("127.0.0.1:{native}"),
        "--http",
        &format!("127.0.0.1:{http}"),
    ];
    let server = home.serve_at("repo", &places);
    let location = match scheme {
        "bulla" => server.location().to_owned(),
        _ => format!("http://127.0.0.1:{http}"),
    };
    (server, location)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// `bulla mount --foreground`.
fn mount(home: &Home, source: &str, more: &[&str]) -> Child {
    fs::create_dir_all(home.path("mnt")).unwrap();
    let args = [&["mount", source, "mnt", "--foreground"], more].concat();
    let mut command = home.command(&args);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    wait_until("the mount", || home.path("mnt/a").exists());
    child
}

fn has_fuse() -> bool {
    let has = Path::new("/dev/fuse").exists();
    if !has {
        skipped("a mount", "no /dev/fuse");
    }
    has
}

#[test]
fn mute_mirrors_cost_nothing_that_a_reader_notices() {
    let (home, volume) = filled();
    for scheme in ["bulla", "http"] {
        let (_server, good) = serve(&home, 0, scheme);
        for count in [1, 8, 31] {
            let mute = Mute::new(count);
            let mut all = mute.places(scheme);
            // First, in the middle, or last.
            all.insert([1, 0, count / 2][count % 3], good.clone());
            let source = format!("{volume}@{}", all[0]);
            let mut mirrors: Vec<&str> = Vec::new();
            all.iter()
                .skip(1)
                .for_each(|it| mirrors.extend(["--mirror", it]));
            for deadline in [&["--deadline", "2s"][..], &[]] {
                let case = format!("{scheme}, {count} mute, {deadline:?}");
                let began = Instant::now();
                let args = [&["cat", &source, "a"], &mirrors[..], deadline].concat();
                assert_eq!(home.run(&args).ends(0).out, "hello\n", "{case}");
                assert!(began.elapsed() < PROMPT, "{case}: {:?}", began.elapsed());
                println!("{case}: {:?}", began.elapsed());
            }
        }
    }
}

#[test]
fn mount_notices_nothing_of_mute_mirrors() {
    if !has_fuse() {
        return;
    }
    let (home, volume) = filled();
    for scheme in ["bulla", "http"] {
        let (_server, good) = serve(&home, 0, scheme);
        let mute = Mute::new(25);
        let places = mute.places(scheme);
        let source = format!("{volume}@{}", places[0]);
        let mut mirrors: Vec<&str> = Vec::new();
        places
            .iter()
            .skip(1)
            .for_each(|it| mirrors.extend(["--mirror", it]));
        mirrors.extend(["--mirror", &good, "--refresh", "500ms"]);
        let mounted = Mounted {
            home: &home,
            dir: "mnt",
        };
        let mut daemon = mount(&home, &source, &mirrors);
        for round in ["cold", "warm"] {
            for n in 0..FILES {
                let began = Instant::now();
                let bytes = fs::read(home.path("mnt").join(name(n))).unwrap();
                assert!(bytes == noise(n as u64, 300_000));
                let took = began.elapsed();
                assert!(took < PROMPT, "{scheme}, {round}: {took:?}");
            }
        }
        drop(mounted);
        daemon.wait().unwrap();
    }
}

/// What a place does while the server is away.
#[derive(Debug, Clone, Copy)]
enum Away {
    Refuses,
    Resets,
    Errors,
}

/// Whoever answers at `port` until it is dropped.
struct Stand(Option<(u16, std::thread::JoinHandle<()>)>);

impl Stand {
    fn new(port: u16, away: Away) -> Stand {
        if matches!(away, Away::Refuses) {
            return Stand(None);
        }
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let answer = move || {
            for client in listener.incoming().flatten() {
                let mut client: TcpStream = client;
                let mut asked = [0; 1024];
                let count = client.read(&mut asked).unwrap_or(0);
                if asked.starts_with(b"end") {
                    return;
                }
                if matches!(away, Away::Errors) && count > 0 {
                    let error = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                    let _ = client.write_all(error.as_bytes());
                }
            }
        };
        Stand(Some((port, std::thread::spawn(answer))))
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        if let Some((port, thread)) = self.0.take() {
            let mut last = TcpStream::connect(("127.0.0.1", port)).unwrap();
            last.write_all(b"end").unwrap();
            thread.join().unwrap();
        }
    }
}

#[test]
fn commands_wait_for_the_end_of_an_outage_of_the_only_server() {
    let (home, volume) = filled();
    let cases = [
        ("bulla", Away::Refuses, 1500),
        ("bulla", Away::Resets, 700),
        ("http", Away::Refuses, 700),
        ("http", Away::Errors, 1500),
    ];
    for (scheme, away, lasts_ms) in cases {
        let case = format!("{scheme}, {away:?}, {lasts_ms} ms");
        let port = free_port();
        let source = format!("{volume}@{scheme}://127.0.0.1:{port}");
        let stand = Stand::new(port, away);
        let out = format!("out-{scheme}-{away:?}");
        let cache = format!("cache-{scheme}-{away:?}");
        let all: [&[&str]; 5] = [
            &["cat", &source, "a"],
            &["ls", &source],
            &["extract", &source, &out],
            &["verify", &source],
            &["prefetch", &source, "--cache", &cache],
        ];
        let begun = all.map(|args| {
            let mut command = home.command(args);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        });
        std::thread::sleep(Duration::from_millis(lasts_ms));
        drop(stand);
        let (_server, _) = serve(&home, port, scheme);
        for (args, child) in all.iter().zip(begun) {
            let told = Ran::of(child.wait_with_output().unwrap());
            assert_eq!(told.code, 0, "{case}: {args:?}: {}", told.err);
        }
        assert!(fs::read(home.path(&out).join("a")).unwrap() == b"hello\n");
    }
}

#[test]
fn reads_on_a_mount_wait_for_the_end_of_an_outage_and_can_be_given_up() {
    if !has_fuse() {
        return;
    }
    let (home, volume) = filled();
    for scheme in ["bulla", "http"] {
        let port = free_port();
        let (mut server, _) = serve(&home, port, scheme);
        let source = format!("{volume}@{scheme}://127.0.0.1:{port}");
        let mounted = Mounted {
            home: &home,
            dir: "mnt",
        };
        let mut daemon = mount(&home, &source, &["--deadline", "60s"]);
        for (read, lasts_ms) in [200, 2500].into_iter().enumerate() {
            server.kill();
            let path = home.path("mnt").join(name(read));
            let reader = std::thread::spawn(move || fs::read(path));
            std::thread::sleep(Duration::from_millis(lasts_ms));
            let told = home.run(&["--json", "status", "mnt"]).ends(0);
            let outage = told.records("mount").remove(0)["outage"].clone();
            assert!(outage["cause"].as_str().is_some(), "{scheme}: {outage}");
            (server, _) = serve(&home, port, scheme);
            let bytes = reader.join().unwrap();
            let bytes = bytes.unwrap_or_else(|error| panic!("{scheme}, {lasts_ms} ms: {error}"));
            assert!(bytes == noise(read as u64, 300_000), "{scheme}");
            let told = home.run(&["--json", "status", "mnt"]).ends(0);
            let outage = told.records("mount").remove(0)["outage"].clone();
            assert_eq!(outage, Value::Null, "{scheme}");
        }
        // A killed program does not wait until the deadline, and neither does `umount`.
        server.kill();
        let mut readers = ["x1", "x2"].map(|apart| {
            let mut command = std::process::Command::new("cat");
            command.arg(home.path("mnt").join(apart).join("large"));
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().unwrap()
        });
        std::thread::sleep(Duration::from_millis(500));
        let began = Instant::now();
        readers[0].kill().unwrap();
        readers[0].wait().unwrap();
        let took = began.elapsed();
        assert!(took < Duration::from_secs(30), "{scheme}, killed: {took:?}");
        drop(mounted);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(30), "{scheme}, umount: {took:?}");
        readers[1].kill().unwrap();
        readers[1].wait().unwrap();
        daemon.wait().unwrap();
        let took = began.elapsed();
        assert!(
            took < Duration::from_secs(45),
            "{scheme}, the end: {took:?}"
        );
    }
}

#[test]
fn outage_ends_at_the_deadline_and_another_volume_is_told_at_once() {
    let (home, volume) = filled();
    for scheme in ["bulla", "http"] {
        let source = format!("{volume}@{scheme}://127.0.0.1:{}", free_port());
        let began = Instant::now();
        let told = home
            .run(&["cat", &source, "a", "--deadline", "1s"])
            .ends(30);
        assert!(began.elapsed() >= Duration::from_millis(800), "{scheme}");
        assert!(told.err.contains("refused"), "{scheme}: {}", told.err);
        let (_server, location) = serve(&home, 0, scheme);
        let other = "a".repeat(volume.len());
        let other = format!("{}{}", &volume[..volume.len() - 8], &other[..8]);
        let began = Instant::now();
        let told = home.run(&[
            "cat",
            &format!("{other}@{location}"),
            "a",
            "--deadline",
            "300s",
        ]);
        assert_ne!(told.code, 0, "{scheme}");
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{scheme}: {}",
            told.err
        );
    }
}

#[test]
fn whoever_sits_at_a_terminal_is_told_at_once_that_the_command_waits() {
    let home = Home::new();
    let volume = home.published();
    let source = format!("{volume}@bulla://127.0.0.1:{}", free_port());
    let args = ["cat", &source, "a", "--deadline", "1s"];
    let Some(shown) = at_terminal(&home.command(&args), "") else {
        return skipped("the line at a terminal", "no script(1)");
    };
    assert!(shown.contains("code 30"), "{shown}");
    let (waits, fails) = (shown.find("waits until its deadline"), shown.find("error:"));
    assert!(waits.is_some() && waits < fails, "{shown}");
    let quiet = [&["-q"], &args[..]].concat();
    let shown = at_terminal(&home.command(&quiet), "").unwrap();
    assert!(!shown.contains("waits until"), "{shown}");
}
