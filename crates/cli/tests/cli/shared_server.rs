//! `bulla serve` for shared volumes as an operator runs it: several volumes in one process beside a published one,
//! sockets of a service manager, and what is refused.

use std::fs;
use std::process::Command;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::Signal;

use crate::metrics;
use crate::services::{Service, activated, listener};
use crate::shared_lab::{Orderer, Talk, found, founded};
use crate::support::{Home, Ran, Tmpfs, noise, skipped, wait_until};

/// A volume of this name on a new machine, whose server has this key. Its genesis is accepted into `repo`.
fn another(orderer: &Orderer, key: &str, name: &str, repo: &str) -> Home {
    let bob = Home::new();
    let make = ["key", "new", "--out", "owner", "--no-passphrase"];
    bob.run(&make).ends(0);
    let location = orderer.location();
    let init = ["share", "init", name, "--orderer", key, "--user", "bob"];
    let rest = ["--server", &location, "--owner-key", "owner"];
    bob.run(&[&init[..], &rest, &["--out", "genesis"]].concat())
        .ends(0);
    let genesis = bob.path("genesis");
    drop(accepted(orderer, repo, genesis.to_str().unwrap()));
    bob
}

/// The server of a new directory, after it says that it serves. It is killed on drop.
fn accepted(orderer: &Orderer, repo: &str, genesis: &str) -> Service {
    let args = ["--json", "serve", repo, "--orderer-key", "key"];
    let more = ["--shared", "127.0.0.1:0", "--accept", genesis];
    let mut command = orderer.home.command(&[&args[..], &more].concat());
    let mut service = Service(
        command
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut line = String::new();
    let stdout = service.0.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    assert!(line.contains("\"serving\""), "{line}");
    service
}

fn key_of(orderer: &Orderer) -> String {
    let shown = orderer.home.run(&["--json", "key", "show", "key"]).ends(0);
    shown.field("key").as_str().unwrap().to_owned()
}

fn put_and_read(home: &Home, volume: &str) -> Ran {
    fs::write(home.path("list"), "milk\n").unwrap();
    home.run(&["put", "list", volume]).ends(0);
    let read = home.run(&["cat", volume, "list"]).ends(0);
    assert_eq!(read.out, "milk\n");
    read
}

#[test]
fn one_server_has_several_shared_volumes_and_a_published_one() {
    let (mut orderer, ada) = founded(&[]);
    let key = key_of(&orderer);
    let bob = another(&orderer, &key, "plans", "second");
    orderer.kill();
    let publisher = Home::new();
    let published = publisher.published();
    let third = publisher.path("repo");
    let any = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    let address = orderer.address();
    let third = third.to_str().unwrap();
    let args = ["--json", "serve", "repo", "second", third];
    let shared = ["--orderer-key", "key", "--shared", &address];
    let all = [&args[..], &shared, &any].concat();
    let (_daemon, told) = metrics::start(&orderer.home, &all, 4);
    put_and_read(&ada, "notes");
    put_and_read(&bob, "plans");
    let source = told[1]["source"].as_str().unwrap();
    assert!(source.starts_with(&published), "{source}");
    assert_eq!(ada.run(&["cat", source, "a"]).ends(0).out, "hello\n");
    let page = metrics::get(told[0]["address"].as_str().unwrap());
    for told in &told[2..] {
        assert_eq!(told["shared"], true);
        let volume = told["volume"].as_str().unwrap();
        let sample = format!("bulla_shared_entries_total{{volume=\"{volume}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&sample));
        let entries: u64 = line.expect(&sample).parse().unwrap();
        assert!(entries > 0, "{page}");
    }
    assert!(page.contains("bulla_serve_requests_total"), "{page}");
}

#[test]
fn two_copies_of_one_volume_are_not_served_together() {
    let (mut orderer, _ada) = founded(&[]);
    orderer.kill();
    let (from, to) = (orderer.home.path("repo"), orderer.home.path("copy"));
    let mut copy = Command::new("cp");
    assert!(copy.arg("-a").args([from, to]).status().unwrap().success());
    let args = ["serve", "repo", "copy", "--orderer-key", "key"];
    let refused = orderer.home.run(&args).ends(2);
    assert!(
        refused.err.contains("servers of one volume"),
        "{}",
        refused.err
    );
    assert!(refused.err.contains("hint: "), "{}", refused.err);
}

#[test]
fn devices_connect_to_the_socket_of_a_service_manager() {
    let (mut orderer, ada) = founded(&[]);
    orderer.kill();
    let shared = std::net::TcpListener::bind(orderer.address()).unwrap();
    let [(metrics, metrics_at), (other, _)] = [listener(), listener()];
    let sockets = [shared, metrics, other].map(Into::into);
    let args = ["--json", "serve", "repo", "--orderer-key", "key"];
    let mut command = activated(&orderer.home, sockets, "shared:metrics:bulla", &args);
    let mut service = Service(command.spawn().unwrap());
    put_and_read(&ada, "notes");
    let page = metrics::get(&metrics_at.to_string());
    assert!(page.contains("bulla_shared_devices{"), "{page}");
    // It goes on when it is to look for new versions: shared volumes need no such call.
    service.signal(Signal::HUP);
    put_and_read(&ada, "notes");
    service.signal(Signal::TERM);
    assert_eq!(service.ends(), Some(0));
}

#[test]
fn socket_for_devices_without_a_shared_volume_is_refused() {
    let home = Home::new();
    home.published();
    let sockets = [listener().0, listener().0, listener().0].map(Into::into);
    let mut command = activated(&home, sockets, "bulla:http:shared", &["serve", "repo"]);
    let mut service = Service(command.spawn().unwrap());
    assert_eq!(service.ends(), Some(2));
    let err = fs::read_to_string(home.path("err")).unwrap();
    assert!(err.contains("`shared`") && err.contains("hint: "), "{err}");
}

/// The signals that a process catches, as a mask.
fn caught(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap()
}

/// The output is a pipe that is full and that nobody reads. So the server stops in the write of `serving`, and the test
/// can look at its signals.
#[test]
fn server_listens_for_signals_before_it_says_that_it_serves() {
    let (mut orderer, _ada) = founded(&[]);
    orderer.stop();
    let (_reader, mut writer) = std::io::pipe().unwrap();
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while std::io::Write::write(&mut writer, &[b' '; 4096]).is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    let args = ["serve", "repo", "--orderer-key", "key"];
    let more = ["--shared", "127.0.0.1:0"];
    let mut command = orderer.home.command(&[&args[..], &more].concat());
    let service = Service(command.stdout(writer).spawn().unwrap());
    let both = [Signal::TERM, Signal::INT].map(|signal| 1 << (signal.as_raw() - 1));
    wait_until("it listens for signals", || {
        both.iter().all(|bit| caught(service.0.id()) & bit != 0)
    });
}

/// Files whose blocks all go through the server's temporary log.
fn short_blocks(home: &Home) -> Vec<Vec<u8>> {
    fs::create_dir(home.path("tree")).unwrap();
    let contents: Vec<Vec<u8>> = (0..60).map(|at| noise(at, 60_000)).collect();
    for (at, content) in contents.iter().enumerate() {
        fs::write(home.path(&format!("tree/{at}")), content).unwrap();
    }
    contents
}

#[test]
fn smallest_ring_takes_what_any_other_takes() {
    let (mut orderer, key) = Orderer::new("127.0.0.1");
    let ada = found(&mut orderer, &key, &[], &["--ring", "4MiB"]);
    let contents = short_blocks(&ada);
    fs::write(ada.path("big"), noise(99, 8 << 20)).unwrap();
    ada.run(&["put", "-r", "tree", "big", "notes"]).ends(0);
    ada.run(&["extract", "notes", "out"]).ends(0);
    for (at, content) in contents.iter().enumerate() {
        let found = fs::read(ada.path(&format!("out/tree/{at}"))).unwrap();
        assert!(found == *content, "{at}");
    }
    assert!(fs::read(ada.path("out/big")).unwrap() == fs::read(ada.path("big")).unwrap());
}

#[test]
fn ring_that_is_too_small_or_does_not_fit_is_refused_by_its_name() {
    let (orderer, ada) = founded(&[]);
    let genesis = ada.path("genesis");
    let Some(_small) = Tmpfs::of(&orderer.home, "small", 24 << 20) else {
        return skipped("a server on a small disk", "a tmpfs cannot be mounted here");
    };
    let serve = |ring: &[&str]| {
        let args = ["serve", "small/repo", "--orderer-key", "key", "--shared"];
        let more = ["127.0.0.1:0", "--accept", genesis.to_str().unwrap()];
        orderer.home.run(&[&args[..], &more, ring].concat())
    };
    for (ring, code) in [
        (&["--ring", "1MiB"][..], 2),
        (&[], 1),
        (&["--ring", "1GiB"], 1),
    ] {
        let told = serve(ring).ends(code);
        assert!(told.err.contains("--ring"), "{ring:?}: {}", told.err);
    }
    let args = ["--json", "serve", "small/repo", "--orderer-key", "key"];
    let more = ["--shared", "127.0.0.1:0", "--ring", "4MiB", "--accept"];
    let args = [&args[..], &more, &[genesis.to_str().unwrap()]].concat();
    let mut serving = Talk::begin(&mut orderer.home.command(&args));
    serving.record("serving", "volume");
    serving.child.kill().unwrap();
    serving.child.wait().unwrap();
}
