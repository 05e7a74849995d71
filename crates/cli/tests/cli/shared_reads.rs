//! Commands that only read while the owners begin the log again: they run again, once, and only if nobody has seen
//! anything of their output.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use share::client::{Client, Options};

use crate::shared_engine::{Running, directory, signal};
use crate::shared_forks::{forked, read};
use crate::shared_lab::{Orderer, Talk, founded, joined};
use crate::shared_recovery::{accepted, names, recovered};
use crate::support::{Home, Ran, wait_until};

/// Time in which a command has asked, and waits.
const ASKED: Duration = Duration::from_millis(700);

/// Content that does not get smaller, longer than what a command reads ahead.
fn long() -> Vec<u8> {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..32 << 20).map(|_| next()).collect()
}

/// A command of a home whose engine another process runs, and that waits for an answer. Then it has the engine itself.
fn waits_in_the_old_log(orderer: &mut Orderer, home: &Home, args: &[&str]) -> Talk {
    let running = Running::begin(home, &[]);
    read(home, "before");
    orderer.stop();
    let early = Talk::begin(&mut home.command(args));
    std::thread::sleep(ASKED);
    running.kill();
    std::thread::sleep(ASKED);
    early
}

#[test]
fn command_that_asks_before_the_new_rules_runs_again_by_itself() {
    let (mut orderer, ada, laptop) = forked();
    let rules = recovered(&ada, &[]);
    let args = ["cat", "notes", "plan", "--deadline", "40s"];
    let early = waits_in_the_old_log(&mut orderer, &laptop, &args);
    let begun = Instant::now();
    accepted(&mut orderer, &rules);
    let told = early.end().ends(0);
    assert_eq!(told.out, "the ferry goes at nine\n");
    assert!(told.err.contains("begun its log again"), "{}", told.err);
    // It does not wait for its deadline first.
    assert!(begun.elapsed() < Duration::from_secs(25));
}

/// Stops a process, if it has not ended. When this returns, none of its threads runs, also not inside a system call that
/// takes a lock.
fn stop(pid: u32) {
    signal(pid, "STOP");
    let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
        // A thread that has ended meanwhile has no file.
        stat.map_or(true, |stat| {
            [") T ", ") Z "].iter().any(|state| stat.contains(state))
        })
    };
    wait_until("the process is stopped", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        tasks.into_iter().all(is_stopped)
    });
}

/// A process that has the engine in the old log when the command begins again, and goes over a moment later. It is this
/// test. The command is stopped whenever both could take the home.
#[test]
fn command_goes_over_before_it_runs_again() {
    // A lock is not handed to whoever waits for it: a command that takes it again at once has gone over.
    let reached = (0..5).any(|_| goes_over_behind_another_process());
    assert!(reached, "the command was quicker than the test each time");
}

/// `false` if the command has gone over before this test had the home.
fn goes_over_behind_another_process() -> bool {
    let (mut orderer, ada, laptop) = forked();
    let rules = recovered(&ada, &[]);
    let args = ["cat", "notes", "plan", "--deadline", "2m"];
    let early = waits_in_the_old_log(&mut orderer, &laptop, &args);
    let lock = File::open(directory(&laptop).join("journal.lock")).unwrap();
    wait_until("the command has the engine", || lock.try_lock().is_err());
    let locking = std::thread::spawn(move || {
        lock.lock().unwrap();
        lock
    });
    accepted(&mut orderer, &rules);
    // The command has seen the rules, and has let the home go.
    let lock = locking.join().unwrap();
    stop(early.child.id());
    let home = share::home::Home::find(&laptop.path(".local/state/bulla"), "notes");
    let home = home.unwrap().unwrap();
    let has_gone_over = home.policies().unwrap().newest_epoch().number > 0;
    drop(lock);
    if has_gone_over {
        signal(early.child.id(), "CONT");
        early.end().ends(0);
        return false;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let until = || Instant::now() + Duration::from_secs(60);
    let engine = Client::start(&home, Options::default(), until());
    let engine = runtime.block_on(engine).unwrap();
    signal(early.child.id(), "CONT");
    std::thread::sleep(ASKED);
    stop(early.child.id());
    runtime.block_on(engine.close(until())).unwrap();
    laptop.run(&["share", "follow", "notes", &rules]).ends(0);
    signal(early.child.id(), "CONT");
    let told = early.end().ends(0);
    assert_eq!(told.out, "the ferry goes at nine\n");
    true
}

#[test]
fn command_that_stays_a_guest_runs_again_by_itself() {
    let (mut orderer, ada, laptop) = forked();
    let rules = recovered(&ada, &[]);
    let running = Running::begin(&laptop, &[]);
    read(&laptop, "before");
    orderer.stop();
    let asking: Vec<Talk> = [
        &["cat", "notes", "plan"][..],
        &["ls", "notes"],
        &["share", "status", "notes"],
    ]
    .map(|args| Talk::begin(&mut laptop.command(args)))
    .into();
    std::thread::sleep(ASKED);
    accepted(&mut orderer, &rules);
    let told: Vec<Ran> = asking.into_iter().map(|talk| talk.end().ends(0)).collect();
    assert_eq!(told[0].out, "the ferry goes at nine\n");
    let count = |name: &str| told[1].out.lines().filter(|line| *line == name).count();
    assert_eq!((count("before"), count("plan")), (1, 1), "{}", told[1].out);
    running.stop().ends(0);
}

/// A change is made again by nobody. The command ends as soon as that is clear, and does not wait for its deadline.
#[test]
fn change_that_is_asked_for_before_the_new_rules_is_not_made_again() {
    let (mut orderer, ada, laptop) = forked();
    let rules = recovered(&ada, &[]);
    let mut command = laptop.command(&["put", "-", "notes", "late", "--deadline", "40s"]);
    let mut early = Talk::begin(command.stdin(Stdio::piped()));
    std::thread::sleep(ASKED);
    orderer.stop();
    let mut content = early.child.stdin.take().unwrap();
    content.write_all(b"too late\n").unwrap();
    drop(content);
    std::thread::sleep(ASKED);
    let begun = Instant::now();
    accepted(&mut orderer, &rules);
    let told = early.end().ends(22);
    assert!(begun.elapsed() < Duration::from_secs(25));
    let hint = "look whether the change is there";
    assert!(told.err.contains(hint), "{}", told.err);
    assert!(!names(&ada).iter().any(|name| name.starts_with("late")));
    // What was under way comes back at most once.
    let back = names(&laptop);
    let late = back.iter().filter(|name| name.starts_with("late"));
    assert!(late.count() <= 1, "{back:?}");
}

#[test]
fn half_printed_content_is_not_begun_again() {
    let (mut orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    let long = long();
    std::fs::write(ada.path("long"), &long).unwrap();
    ada.run(&["put", "long", "notes"]).ends(0);
    let rules = recovered(&ada, &[]);
    let mut reading = Talk::begin(&mut laptop.command(&["cat", "notes", "long"]));
    let mut seen = vec![0];
    reading.stdout.read_exact(&mut seen).unwrap();
    accepted(&mut orderer, &rules);
    std::thread::sleep(ASKED);
    let mut rest = Vec::new();
    reading.stdout.read_to_end(&mut rest).unwrap();
    seen.append(&mut rest);
    let told = reading.end().ends(22);
    assert!(told.err.contains("Run the command again"), "{}", told.err);
    assert!(seen.len() < long.len(), "{}", seen.len());
    assert!(long.starts_with(&seen));
    let whole = laptop.command(&["cat", "notes", "long"]).output().unwrap();
    assert!(whole.status.success() && whole.stdout == long);
}

/// A list whose first page is of the log before. The device goes over while it is printed.
#[test]
fn list_is_never_of_two_logs() {
    let (mut orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    for directory in ["a", "b"] {
        std::fs::create_dir(ada.path(directory)).unwrap();
    }
    // More than a pipe and a buffer take.
    for number in 0..800 {
        let name = format!("a/{number}{}", "long".repeat(60));
        std::fs::write(ada.path(&name), "").unwrap();
    }
    std::fs::write(ada.path("b/last"), "").unwrap();
    ada.run(&["put", "-r", "a", "b", "notes"]).ends(0);
    let running = Running::begin(&laptop, &[]);
    let rules = recovered(&ada, &[]);
    let mut listing = Talk::begin(&mut laptop.command(&["ls", "-R", "notes"]));
    let first = listing.line();
    signal(listing.child.id(), "STOP");
    running.kill();
    accepted(&mut orderer, &rules);
    laptop.run(&["ls", "notes"]).ends(0);
    let running = Running::begin(&laptop, &[]);
    signal(listing.child.id(), "CONT");
    let told = listing.end().ends(22);
    assert_eq!(first, "a");
    assert!(!told.out.contains("last"), "{}", told.out);
    assert!(
        laptop
            .run(&["ls", "-R", "notes"])
            .ends(0)
            .out
            .ends_with("b/last\n")
    );
    running.stop().ends(0);
}

#[test]
fn extraction_that_has_made_files_is_not_begun_again() {
    let (mut orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    std::fs::write(ada.path("long"), long()).unwrap();
    ada.run(&["put", "long", "notes"]).ends(0);
    let rules = recovered(&ada, &[]);
    let extracting = Talk::begin(&mut laptop.command(&["extract", "notes", "out"]));
    while !laptop.path("out/long").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    signal(extracting.child.id(), "STOP");
    accepted(&mut orderer, &rules);
    signal(extracting.child.id(), "CONT");
    let told = extracting.end().ends(22);
    assert!(told.err.contains("made so far"), "{}", told.err);
}
