//! After a fork, with real processes: the owner lets one log stand, the server accepts it, and all devices go on. What a
//! device alone had comes back as copies.

use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use crate::shared_engine::{Running, directory};
use crate::shared_forks::{compared, forked, kind, put, read};
use crate::shared_lab::{Orderer, founded, joined};
use crate::support::{Home, Ran, copy, wait_until};

/// The names in the root directory.
pub fn names(home: &Home) -> Vec<String> {
    let listed = home.run(&["ls", "notes"]).ends(0).out;
    listed.lines().map(str::to_owned).collect()
}

fn path(path: PathBuf) -> String {
    path.to_str().unwrap().to_owned()
}

/// The owner lets ada's log stand, and writes the rules.
pub fn recovered(ada: &Home, flags: &[&str]) -> String {
    let args = [
        "--json",
        "share",
        "recover",
        "notes",
        "--owner-key",
        "owner",
        "--out",
        "rules",
    ];
    let told = ada.run(&[&args, flags].concat()).ends(0);
    assert_eq!(told.field("epoch"), 1);
    path(ada.path("rules"))
}

/// The server goes on with the directory `repo` and these rules.
pub fn accepted(orderer: &mut Orderer, rules: &str) {
    orderer.stop();
    orderer.start_with(&["--accept", rules]);
}

/// The conflict copies among the names.
fn copies(home: &Home) -> Vec<String> {
    let copy = |name: &String| name.contains("(conflict device 1 ");
    names(home).into_iter().filter(copy).collect()
}

#[test]
fn after_a_fork_both_devices_go_on_and_nothing_is_lost() {
    let (mut orderer, ada, laptop) = forked();
    laptop.run(&["mkdir", "notes", "trips"]).ends(0);
    std::fs::write(laptop.path("map"), "north is up\n").unwrap();
    laptop.run(&["put", "map", "notes", "trips"]).ends(0);
    compared(&ada, &laptop);
    let refused = laptop.run(&["--json", "put", "x", "notes"]).ends(22);
    assert_eq!(kind(&refused), "fork");
    let rules = recovered(&ada, &[]);
    let told = ada
        .run(&["--json", "ls", "notes", "--deadline", "3s"])
        .ends(30);
    assert!(told.err.contains("not accepted"), "{}", told.err);
    // The device still owes its lost work.
    ada.run(&["share", "forget", "notes", "--yes"]).ends(1);
    accepted(&mut orderer, &rules);
    put(&ada, "after", "we go on\n");
    // The laptop has proof against its server, and goes over as soon as the server shows what the owner has signed.
    let told = laptop.run(&["cat", "notes", "after"]).ends(0);
    assert_eq!(told.out, "we go on\n");
    assert!(
        told.err.contains("plan (conflict device 1 "),
        "{}",
        told.err
    );
    for home in [&ada, &laptop] {
        assert_eq!(read(home, "plan"), "the ferry goes at nine\n");
        let copies = copies(home);
        let beginnings = ["plan (", "x (", "y (", "z ("];
        for (copy, beginning) in copies.iter().zip(beginnings) {
            assert!(copy.starts_with(beginning), "{copies:?}");
        }
        assert_eq!(copies.len(), beginnings.len(), "{copies:?}");
        assert_eq!(read(home, &copies[0]), "the ferry goes at ten\n");
        let trips = home.run(&["ls", "notes", "trips"]).ends(0).out;
        assert!(trips.starts_with("map (conflict device 1 "), "{trips}");
        let status = home.run(&["--json", "share", "status", "notes"]).ends(0);
        assert_eq!(
            (status.field("differing"), status.field("epoch")),
            (0.into(), 1.into())
        );
        // What it wrote before the fork came with the log again, and is its own.
        assert_eq!(status.field("forgotten"), 0);
    }
    put(&laptop, "again", "we too\n");
    assert_eq!(read(&ada, "again"), "we too\n");
    // A newcomer has the whole history.
    let phone = joined(&ada, "ada");
    assert_eq!(read(&phone, "before"), "both know this\n");
    assert_eq!(names(&phone), names(&ada));
}

/// This device does not have what it wrote any more.
pub fn forget_own_content(device: &Home) {
    std::fs::remove_dir_all(directory(device).join("own")).unwrap();
}

/// The process that stays gives back, and nobody else runs a command on its device meanwhile.
fn logs_what_is_lacking(laptop: &Home, ada: &Home, running: Running) {
    let returned = directory(laptop).join("returned");
    wait_until("the rest is back", || returned.exists());
    assert_eq!(read(laptop, "plan"), "the ferry goes at nine\n");
    put(laptop, "again", "we too\n");
    assert_eq!(read(ada, "again"), "we too\n");
    let logged = running.stop().ends(0).err;
    let count = |text: &str| logged.lines().filter(|line| line.contains(text)).count();
    assert_eq!(count("goes on there"), 1, "{logged}");
    assert_eq!(count("is not back"), 1, "{logged}");
    let lacking = logged.lines().find(|line| line.contains("is not back"));
    assert!(lacking.unwrap().contains("long"), "{logged}");
}

#[test]
fn engine_that_stays_goes_over_by_itself_and_logs_what_is_lacking() {
    let (mut orderer, ada, laptop) = forked();
    std::fs::write(laptop.path("long"), vec![7; 100_000]).unwrap();
    laptop.run(&["put", "long", "notes"]).ends(0);
    forget_own_content(&laptop);
    let running = Running::begin(&laptop, &[]);
    let rules = recovered(&ada, &[]);
    accepted(&mut orderer, &rules);
    logs_what_is_lacking(&laptop, &ada, running);
    assert_eq!(copies(&ada).len(), 1);
}

#[test]
fn engine_that_starts_with_proof_goes_over_and_logs_what_is_lacking() {
    let (mut orderer, ada, laptop) = forked();
    std::fs::write(laptop.path("long"), vec![7; 100_000]).unwrap();
    laptop.run(&["put", "long", "notes"]).ends(0);
    forget_own_content(&laptop);
    compared(&ada, &laptop);
    let rules = recovered(&ada, &[]);
    accepted(&mut orderer, &rules);
    let running = Running::begin(&laptop, &[]);
    logs_what_is_lacking(&laptop, &ada, running);
    // Its plan, and what it has written to be compared.
    assert_eq!(copies(&ada).len(), 4);
}

/// The loss is told once, by the process that has gone over first.
#[test]
fn command_beside_an_engine_that_stays_tells_no_loss_a_second_time() {
    let (mut orderer, ada, laptop) = forked();
    std::fs::write(laptop.path("long"), vec![7; 100_000]).unwrap();
    laptop.run(&["put", "long", "notes"]).ends(0);
    forget_own_content(&laptop);
    let running = Running::begin(&laptop, &[]);
    let rules = recovered(&ada, &[]);
    accepted(&mut orderer, &rules);
    let cat = laptop.run(&["cat", "notes", "plan"]).ends(0);
    assert_eq!(cat.out, "the ferry goes at nine\n");
    let returned = directory(&laptop).join("returned");
    wait_until("the rest is back", || returned.exists());
    let told = cat.err + &running.stop().ends(0).err;
    let lacking = told
        .lines()
        .filter(|line| line.contains("`long` is not back") || line.contains("is not back after"));
    assert_eq!(lacking.count(), 1, "{told}");
    assert_eq!(copies(&ada).len(), 1);
}

#[test]
fn device_without_proof_goes_over_by_itself_and_work_comes_back_once() {
    let (mut orderer, ada, laptop) = forked();
    // Its blocks are in the directory of the other branch only.
    std::fs::write(laptop.path("long"), vec![7; 100_000]).unwrap();
    laptop.run(&["put", "long", "notes"]).ends(0);
    forget_own_content(&laptop);
    let rules = recovered(&ada, &[]);
    accepted(&mut orderer, &rules);
    let told = laptop.run(&["cat", "notes", "plan"]).ends(0);
    assert_eq!(told.out, "the ferry goes at nine\n");
    let lacks = "`long` is not back: the server does not have its content";
    assert!(told.err.contains(lacks), "{}", told.err);
    assert_eq!(copies(&ada).len(), 1);
    // Nothing is given up unasked, and what is back does not come back twice, also when it was removed since.
    let back = copies(&ada).remove(0);
    ada.run(&["rm", "notes", &back]).ends(0);
    let told = laptop.run(&["ls", "notes"]).ends(0);
    assert!(told.err.contains(lacks), "{}", told.err);
    assert!(!told.err.contains("does not have 2"), "{}", told.err);
    laptop.run(&["share", "forget", "notes", "--yes"]).ends(1);
    let give_up = ["share", "follow", "notes", "--give-up"];
    assert!(laptop.run(&give_up).ends(0).err.contains(lacks));
    assert_eq!(laptop.run(&["ls", "notes"]).ends(0).err, "");
    let told = laptop
        .run(&["--json", "share", "follow", "notes", &rules])
        .ends(0);
    assert_eq!(
        (told.field("epoch"), told.field("copies")),
        (1.into(), 0.into())
    );
    assert_eq!(copies(&ada).len(), 0);
}

#[test]
fn shorter_prefix_and_another_server_stand_if_the_owner_says_so() {
    let (mut orderer, ada, laptop) = forked();
    let size = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    let size = size.field("size").as_u64().unwrap();
    put(&ada, "late", "too late\n");
    let (mut other, key) = Orderer::new("127.0.0.1");
    let at = size.to_string();
    let location = other.location();
    let flags = ["--at", &at, "--orderer", &key, "--server", &location];
    let rules = recovered(&ada, &flags);
    orderer.stop();
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([orderer.home.path("repo"), other.home.path("repo")])
        .status();
    assert!(copied.unwrap().success());
    other.start_with(&["--accept", &rules]);
    let told = ada.run(&["ls", "notes"]).ends(0);
    assert!(
        told.out.contains("late (conflict device 0 "),
        "{}",
        told.out
    );
    assert!(!told.out.lines().any(|name| name == "late"));
    // The old server is gone, so nobody shows the laptop the rules but a file.
    laptop.run(&["ls", "notes", "--deadline", "2s"]).ends(30);
    let args = ["share", "follow", "notes", &rules, "--server", &location];
    laptop.run(&args).ends(0);
    assert_eq!(read(&laptop, "plan"), "the ferry goes at nine\n");
    assert_eq!(names(&laptop), names(&ada));
    // The server of the old epoch does not start with the rules of the new one.
    let refused = orderer.home.run(&[
        "serve",
        "repo",
        "--accept",
        &rules,
        "--orderer-key",
        "key",
        "--shared",
        "127.0.0.1:0",
    ]);
    refused.ends(12);
}

#[test]
fn rules_that_do_not_count_change_nothing() {
    let (mut orderer, ada, laptop) = forked();
    // Not the owner's key.
    ada.run(&["key", "new", "--out", "stranger", "--no-passphrase"])
        .ends(0);
    let args = [
        "share",
        "recover",
        "notes",
        "--owner-key",
        "stranger",
        "--out",
        "no",
    ];
    ada.run(&args).ends(12);
    assert!(!ada.path("no").exists());
    // More than the device has seen.
    let args = [
        "share",
        "recover",
        "notes",
        "--owner-key",
        "owner",
        "--at",
        "9999",
        "--out",
        "no",
    ];
    ada.run(&args).ends(10);
    // The directory of the other branch does not have what stands.
    let rules = recovered(&ada, &[]);
    orderer.stop();
    let serve = |directory: &str| {
        let args = [
            "serve",
            directory,
            "--accept",
            &rules,
            "--orderer-key",
            "key",
            "--shared",
            "127.0.0.1:0",
        ];
        orderer.home.run(&args)
    };
    serve("other").ends(22);
    serve("nothing").ends(22);
    // A changed file.
    let mut bytes = std::fs::read(&rules).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(laptop.path("changed"), bytes).unwrap();
    laptop
        .run(&["share", "follow", "notes", "changed"])
        .ends(20);
    // An old state of the rules changes nothing.
    accepted(&mut orderer, &rules);
    assert_eq!(read(&laptop, "plan"), "the ferry goes at nine\n");
    let genesis = path(ada.path("genesis"));
    let told = laptop
        .run(&["--json", "share", "follow", "notes", &genesis])
        .ends(0);
    assert_eq!(told.field("epoch"), 1);
    accepted(&mut orderer, &genesis);
    assert_eq!(read(&ada, "plan"), "the ferry goes at nine\n");
    assert_eq!(names(&laptop), names(&ada));
}

/// Two different rules with one number are a fork of the owners.
#[test]
fn rules_are_signed_once_also_when_another_program_runs_the_engine() {
    let (_orderer, ada, _laptop) = forked();
    let running = Running::begin(&ada, &[]);
    let recover = |deadline: &str| {
        let args = ["share", "recover", "notes", "--owner-key", "owner"];
        let more = ["--out", "rules", "--deadline", deadline];
        ada.run(&[&args[..], &more].concat())
    };
    let refused = recover("2s").ends(11);
    assert!(refused.err.contains("hint: "), "{}", refused.err);
    assert!(!ada.path("rules").exists());
    running.stop().ends(0);
    // A run that was killed after it had signed.
    let (home, kept) = (ada.path(".local"), ada.path("kept"));
    copy(&home, &kept);
    recover("30s").ends(0);
    std::fs::remove_dir_all(&home).unwrap();
    std::fs::rename(&kept, &home).unwrap();
    let again = recover("30s").ends(1);
    assert!(
        again.err.contains("sign no others") && again.err.contains("share follow notes rules"),
        "{}",
        again.err
    );
    let told = ada.run(&[
        "--json",
        "share",
        "follow",
        "notes",
        "rules",
        "--deadline",
        "2s",
    ]);
    assert_eq!(kind(&told.ends(30)), "unavailable");
    let status = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(status.field("epoch"), 1);
    // An other file of that name is no such file.
    std::fs::write(ada.path("other"), "hello").unwrap();
    let args = ["share", "recover", "notes", "--owner-key", "owner"];
    let other = ada.run(&[&args[..], &["--out", "other"]].concat()).ends(1);
    assert!(!other.err.contains("sign no others"), "{}", other.err);
}

#[test]
fn two_owners_sign_together() {
    let (mut orderer, key) = Orderer::new("127.0.0.1");
    let ada = Home::new();
    for name in ["one", "two"] {
        ada.run(&["key", "new", "--out", name, "--no-passphrase"])
            .ends(0);
    }
    let location = orderer.location();
    let args = ["share", "init", "notes", "--orderer", &key, "--server"];
    let more = [&location, "--owner-key", "one", "--owner-key", "two"];
    let rest = ["--user", "ada", "--out", "genesis"];
    ada.run(&[&args[..], &more, &rest].concat()).ends(0);
    let genesis = path(ada.path("genesis"));
    orderer.start_with(&["--accept", &genesis]);
    put(&ada, "plan", "the ferry goes at nine\n");
    let laptop = joined(&ada, "ada");
    let recover = ["share", "recover", "notes", "--out", "rules"];
    let one = ["--owner-key", "one"];
    let refused = ada.run(&[&recover[..], &one].concat()).ends(12);
    assert!(refused.err.contains("too few"), "{}", refused.err);
    // One owner twice is one owner.
    ada.run(&[&recover[..], &one, &one].concat()).ends(12);
    assert!(!ada.path("rules").exists());
    let two = ["--owner-key", "two"];
    ada.run(&[&recover[..], &two, &one].concat()).ends(0);
    accepted(&mut orderer, &path(ada.path("rules")));
    for home in [&ada, &laptop] {
        assert_eq!(read(home, "plan"), "the ferry goes at nine\n");
        let status = home.run(&["--json", "share", "status", "notes"]).ends(0);
        assert_eq!(status.field("epoch"), 1);
    }
}

/// Each line is for one key, from a pipe as from a file; the last one is for those that follow.
#[test]
fn passphrases_of_several_owners_come_from_one_descriptor() {
    let (orderer, key) = Orderer::new("127.0.0.1");
    let ada = Home::new();
    for (name, secret) in [("one", "first"), ("two", "second"), ("three", "second")] {
        std::fs::write(ada.path("secret"), secret).unwrap();
        let args = ["key", "new", "--out", name, "--passphrase-file", "secret"];
        ada.run(&args).ends(0);
    }
    ada.run(&["key", "new", "--out", "open", "--no-passphrase"])
        .ends(0);
    let location = orderer.location();
    let init = |name: &str, secrets: &str, pipe: bool| {
        let args = [
            "share",
            "init",
            name,
            "--orderer",
            &key,
            "--server",
            &location,
        ];
        let owners = [
            "--owner-key",
            "one",
            "--owner-key",
            "open",
            "--owner-key",
            "two",
        ];
        let rest = [
            "--owner-key",
            "three",
            "--user",
            "ada",
            "--passphrase-fd",
            "0",
            "--out",
            name,
        ];
        let mut command = ada.command(&[&args[..], &owners, &rest].concat());
        std::fs::write(ada.path("secrets"), secrets).unwrap();
        command.stdin(match pipe {
            true => {
                let (reader, mut writer) = std::io::pipe().unwrap();
                writer.write_all(secrets.as_bytes()).unwrap();
                std::process::Stdio::from(reader)
            }
            false => std::fs::File::open(ada.path("secrets")).unwrap().into(),
        });
        Ran::of(command.output().unwrap())
    };
    for pipe in [true, false] {
        let name = format!("notes{}", u8::from(pipe));
        let wrong = init(&name, "first\n", pipe).ends(12);
        assert!(wrong.err.contains("two"), "{}", wrong.err);
        init(&name, "second\nfirst\n", pipe).ends(12);
        init(&name, "", pipe).ends(2);
        init(&name, "first\nsecond\n", pipe).ends(0);
    }
}

/// Through directories that stand, and through those that are lost with it.
#[test]
fn lost_file_is_named_with_its_directories() {
    let (mut orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    ada.run(&["mkdir", "notes", "trips"]).ends(0);
    ada.run(&["mkdir", "notes", "trips/far"]).ends(0);
    laptop.run(&["ls", "notes", "trips/far"]).ends(0);
    orderer.turn_into_liar(&["repo", "other"]);
    put(&ada, "plan", "the ferry goes at nine\n");
    std::fs::write(laptop.path("long"), vec![7; 100_000]).unwrap();
    laptop.run(&["mkdir", "notes", "trips/new"]).ends(0);
    for directory in ["trips/far", "trips/new"] {
        let path = format!("{directory}/long");
        laptop.run(&["put", "long", "notes", &path]).ends(0);
    }
    forget_own_content(&laptop);
    let rules = recovered(&ada, &[]);
    accepted(&mut orderer, &rules);
    let told = laptop.run(&["--json", "share", "follow", "notes", &rules]);
    let told = told.ends(0);
    let mut names: Vec<String> = serde_json::from_value(told.field("lacking_names")).unwrap();
    names.sort();
    assert_eq!(names, ["trips/far/long", "trips/new/long"]);
}

/// A process that began as a guest runs the engine later: then it gives back what is owed.
#[test]
fn process_that_takes_the_engine_over_gives_back() {
    let (mut orderer, ada, laptop) = forked();
    let rules = recovered(&ada, &[]);
    accepted(&mut orderer, &rules);
    laptop.run(&["ls", "notes"]).ends(0);
    let copy = copies(&ada).remove(0);
    ada.run(&["rm", "notes", &copy]).ends(0);
    let first = Running::begin(&laptop, &[]);
    let second = Running::begin(&laptop, &[]);
    // As if it had not been given back yet.
    let given_back = crate::shared_engine::directory(&laptop).join("given-back");
    std::fs::remove_file(given_back).unwrap();
    first.stop().ends(0);
    wait_until("the copy is there", || copies(&ada).len() == 1);
    second.stop().ends(0);
}

/// kill -9 of a command that goes over and gives back, at many moments: the next one does the rest, and nothing comes
/// back twice.
#[test]
fn killed_command_leaves_the_rest_to_the_next_one() {
    let (mut orderer, ada, laptop) = forked();
    let rules = recovered(&ada, &[]);
    accepted(&mut orderer, &rules);
    let (home, kept) = (laptop.path(".local"), laptop.path("kept"));
    copy(&home, &kept);
    let begun = Instant::now();
    laptop.run(&["ls", "notes"]).ends(0);
    let whole = begun.elapsed();
    const ROUNDS: u32 = 10;
    for round in 1..=ROUNDS {
        let back = copies(&ada).remove(0);
        ada.run(&["rm", "notes", &back]).ends(0);
        std::fs::remove_dir_all(&home).unwrap();
        copy(&kept, &home);
        let mut command = laptop.command(&["ls", "notes"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut killed = command.spawn().unwrap();
        std::thread::sleep(whole * round / ROUNDS);
        killed.kill().unwrap();
        killed.wait().unwrap();
        laptop.run(&["ls", "notes"]).ends(0);
        let back = copies(&ada);
        assert_eq!(back.len(), 1, "{round}: {back:?}");
        assert_eq!(read(&laptop, &back[0]), "the ferry goes at ten\n");
        assert_eq!(read(&laptop, "plan"), "the ferry goes at nine\n");
    }
}
