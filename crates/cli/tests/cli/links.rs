//! Whole trees over all corners of links: 10 and 300 ms, 1 and 1,000 Mbit/s, without loss and with 2 %, natively and over
//! HTTP. Every command ends with the right content, without an error of a deadline and in bounded memory.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sim::network::{Host, Network};

use crate::network::hosts;
use crate::support::{Home, Ran, noise};

const DIRECTORIES: u64 = 30;
const FILES: u64 = 6;
/// More than any command uses for so small a tree: what a link holds back must not pile up.
const MEMORY_KIB: u64 = 200 << 10;
/// Longest time of a command. The tree has 0.6 MB, 5 s at 1 Mbit/s.
const LONGEST: Duration = Duration::from_secs(120);

fn fill(home: &Home) {
    for directory in 0..DIRECTORIES {
        let path = home.path(&format!("tree/t{}/d{directory}", directory % 5));
        fs::create_dir_all(&path).unwrap();
        for file in 0..FILES {
            let content = noise(directory * FILES + file, 600 * (file as usize + 1));
            fs::write(path.join(format!("f{file}")), content).unwrap();
        }
    }
    fs::write(home.path("tree/large"), noise(9999, 150_000)).unwrap();
}

/// The largest memory of a process so far, KiB.
fn peak_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().strip_suffix(" kB")?.parse().ok()
}

/// Runs a command on a host, which must succeed.
pub fn run(home: &Home, host: &Host, link: &str, args: &[&str]) -> Ran {
    let mut command: Command = home.command(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let began = Instant::now();
    let child = host.inside(|| command.spawn()).unwrap();
    let pid = child.id();
    let watch = std::thread::spawn(move || {
        let mut peak = 0;
        while let Some(now) = peak_kib(pid) {
            peak = now.max(peak);
            std::thread::sleep(Duration::from_millis(20));
        }
        peak
    });
    let ran = Ran::of(child.wait_with_output().unwrap()).ends(0);
    let (took, peak) = (began.elapsed(), watch.join().unwrap());
    println!("{link}, {}: {took:?}, {peak} KiB", args.join(" "));
    assert!(took < LONGEST, "{link}: {args:?} took {took:?}");
    assert!(peak < MEMORY_KIB, "{link}: {args:?} used {peak} KiB");
    ran
}

pub fn same(one: &Path, other: &Path) {
    let diff = Command::new("diff").arg("-r").args([one, other]).output();
    let diff = diff.unwrap();
    let told = String::from_utf8_lossy(&diff.stdout);
    assert!(diff.status.success(), "{told}");
}

fn whole_trees(one_way_ms: u64, mbit: u64, lost_in_1000: u64) {
    let mut network = Network::new(Duration::from_millis(one_way_ms), lost_in_1000, 3);
    let Some([server, reader]) = hosts(&mut network) else {
        return;
    };
    network.narrow(mbit * 1_000_000);
    let home = Home::new();
    fs::create_dir_all(home.path("tree")).unwrap();
    fill(&home);
    home.run(&["key", "new", "--out", "key", "--no-passphrase"])
        .ends(0);
    let told = home.publish().ends(0);
    let volume = told.field("volume").as_str().unwrap().to_owned();
    let address = server.address();
    let places = [
        "--listen",
        &format!("{address}:0"),
        "--http",
        &format!("{address}:80"),
    ];
    let serving = server.inside(|| home.serve_at("repo", &places));
    let http = format!("{volume}@http://{address}");
    for (scheme, source) in [("native", &serving.source), ("http", &http)] {
        let link = format!("{one_way_ms} ms, {mbit} Mbit/s, {lost_in_1000} ‰, {scheme}");
        let listed = run(&home, &reader, &link, &["ls", "-R", source]).out;
        let expected = 4 + DIRECTORIES * (1 + FILES);
        let lines = listed.lines().count() as u64;
        assert!(lines >= expected, "{link}: {lines} of {expected}");
        let (out, replica) = (format!("{scheme}-out"), format!("{scheme}-replica"));
        run(&home, &reader, &link, &["extract", source, &out]);
        same(&home.path("tree"), &home.path(&out));
        run(&home, &reader, &link, &["pull", source, &replica]);
        home.run(&["verify", &home.source(&volume, &replica)])
            .ends(0);
    }
    let (carried, lost) = network.packets();
    assert!(lost_in_1000 == 0 || lost > 0, "{lost} of {carried}");
}

#[test]
fn whole_trees_over_a_near_and_narrow_link() {
    whole_trees(5, 1, 0);
}

#[test]
fn whole_trees_over_a_near_and_narrow_link_that_loses_packets() {
    whole_trees(5, 1, 20);
}

#[test]
fn whole_trees_over_a_far_and_narrow_link() {
    whole_trees(150, 1, 0);
}

#[test]
fn whole_trees_over_a_far_and_narrow_link_that_loses_packets() {
    whole_trees(150, 1, 20);
}

#[test]
fn whole_trees_over_a_far_and_fast_link() {
    whole_trees(150, 1000, 0);
}

#[test]
fn whole_trees_over_a_far_and_fast_link_that_loses_packets() {
    whole_trees(150, 1000, 20);
}
