//! Witnesses that strangers, slow keys, wrong directories and liars try to stop or to mislead.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::separate_roles::People;
use crate::support::wait_until;
use crate::witnesses::{
    INSTALL, PUBLISH, Witness, asking, begun, cosigned, post, publish, quorum, remember, run,
    signed_policy, witness_sign,
};

/// A volume with version 1, and a policy for witnesses that is not installed yet. Gives its id, and the checkpoint that they
/// are to cosign, for a witness that has cosigned nothing.
fn proposed(names: &[&str]) -> (People, String, String) {
    let people = People::new(names);
    let made = people.run(&PUBLISH).ends(0);
    let volume = made.field("volume").as_str().unwrap().to_owned();
    quorum(&people, &["w1", "w2"]);
    let out = [&INSTALL[..], &["--checkpoint-out", "note"]].concat();
    people.run(&out).ends(0);
    let note = std::fs::read_to_string(people.path("note")).unwrap();
    let (_, note) = note.split_once("\n\n").unwrap();
    let body = format!("old 0\n\n{note}");
    (people, volume, body)
}

/// As many lines of strangers as a note can have beside the log's own.
fn strangers() -> String {
    (0..99).map(|at| format!("\u{2014} {at}\n")).collect()
}

#[test]
fn stranger_cannot_stop_a_witness_for_good() {
    let (people, volume, body) = proposed(&["p", "w1", "w2"]);
    let mut witness = Witness::start(&people, "w1", &volume);
    let (status, _, line) = post(&witness.url, &(body.clone() + &strangers()));
    assert_eq!(status, 200, "{line}");
    witness.kill();
    assert_eq!(cosigned(&people, "w1").records("log").len(), 1);
    let witness = Witness::start(&people, "w1", &volume);
    let size = body.lines().nth(3).unwrap();
    let again = body.replacen("old 0", &format!("old {size}"), 1);
    let (status, _, same) = post(&witness.url, &again);
    assert_eq!((status, same), (200, line));
}

#[test]
fn file_that_a_witness_has_signed_can_be_read() {
    let (people, volume, body) = proposed(&["p", "w1", "w2"]);
    std::fs::write(people.path("full"), body + &strangers()).unwrap();
    let signed = witness_sign(&people, "w1", &volume, "full", "note-1").ends(0);
    assert!(signed.err.contains("no room"), "{}", signed.err);
    witness_sign(&people, "w2", &volume, "note-1", "both").ends(0);
    let install = [&INSTALL[..4], &["--cosigned", "both"]].concat();
    people.run(&install).ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
}

#[test]
fn witness_without_its_memory_does_not_begin() {
    let (people, volume, _) = proposed(&["p", "w1", "w2"]);
    let follows = format!("{volume}={}", people.key("p"));
    // A disk that is not mounted, a path that was mistyped, the memory of another witness.
    std::fs::create_dir(people.path("empty")).unwrap();
    let (own, other) = (remember(&people, "w1"), remember(&people, "w2"));
    for state in ["empty", "mistyped", &other] {
        let started = people.run(&run("w1", &follows, state)[1..]).ends(1);
        assert!(started.err.contains("memory of"), "{}", started.err);
        people
            .run(&[
                "witness", "sign", "note", "--out", "signed", "--key", "w1", "--name", "w1",
                "--volume", &follows, "--state", state,
            ])
            .ends(1);
    }
    assert!(!people.path("mistyped").exists() && !people.path("signed").exists());
    people.run(&["witness", "list", "--state", "empty"]).ends(1);
    for (key, state) in [("w1", &own), ("w2", &own)] {
        people
            .run(&["witness", "new", "--key", key, "--state", state])
            .ends(1);
    }
    witness_sign(&people, "w1", &volume, "note", "signed").ends(0);
}

#[test]
fn slow_key_keeps_nobody_from_ending_a_witness() {
    let (people, volume, body) = proposed(&["p", "w1", "w2"]);
    let reference = format!(
        "bulla-key-reference-1\npublic {}\nwithin 600\nby command\nargument sleep\nargument 600\n",
        people.key("w1")
    );
    std::fs::write(people.path("w1"), reference).unwrap();
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(people.path("w1"), private).unwrap();
    let mut witness = Witness::start(&people, "w1", &volume);
    let (tell, told) = mpsc::channel();
    let url = witness.url.clone();
    let ask = |_| {
        let (tell, url, body) = (tell.clone(), url.clone(), body.clone());
        std::thread::spawn(move || {
            let answer = post(&url, &body).0;
            // The test may be over.
            let _ = tell.send(answer);
        })
    };
    let asking: Vec<_> = (0..40).map(ask).collect();
    // All but sixteen are sent away at once.
    for _ in 0..24 {
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(503));
    }
    let began = Instant::now();
    witness.ask_to_end();
    wait_until("the witness ends", || {
        witness.child.try_wait().unwrap().is_some()
    });
    assert!(began.elapsed() < Duration::from_secs(8), "{began:?}");
    assert!(witness.child.wait().unwrap().success());
    for asked in asking {
        asked.join().unwrap();
    }
    assert_eq!(told.try_iter().filter(|status| *status == 500).count(), 16);
}

/// A witness that claims to have cosigned another log of each size that it is shown.
fn liar() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut some = [0; 32 << 10];
            let mut count = 0;
            // Up to the end of the last signature line.
            while !some[..count].ends_with(b"=\n") {
                count += stream.read(&mut some[count..]).unwrap();
            }
            let text = String::from_utf8_lossy(&some[..count]);
            let old = text.split("\r\n\r\nold ").nth(1).unwrap();
            let old = old.lines().next().unwrap();
            let answer = format!(
                "HTTP/1.1 409 Conflict\r\nContent-Type: text/x.tlog.size\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{old}\n",
                old.len() + 1
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    url
}

#[test]
fn one_liar_is_no_proof_of_two_histories() {
    let (people, _, mut witnesses) = begun();
    people.write("two");
    let [one, two, _] = [0, 1, 2].map(|at: usize| witnesses[at].url.clone());
    witnesses[1].kill();
    witnesses[2].kill();
    let lies = liar();
    // Named twice, it is still one.
    let refused = publish(&people, &[&one, &two, &lies, &lies]).ends(30);
    let said = "it says that it has cosigned another log";
    assert!(refused.err.contains(said), "{}", refused.err);
    // Of two who say so, one is among the two of three who would have to cosign.
    publish(&people, &[&one, &lies, &liar()]).ends(22);
}

#[test]
fn publisher_learns_that_its_log_is_over() {
    let (people, volume, mut witnesses) = begun();
    // The thief of the log's key has had a log of a later epoch cosigned.
    let seed = std::fs::read_to_string(people.path("p")).unwrap();
    let seed = seed
        .lines()
        .last()
        .unwrap()
        .strip_prefix("secret ")
        .unwrap();
    let byte = |at: usize| u8::from_str_radix(&seed[2 * at..2 * at + 2], 16).unwrap();
    let key = trust::key::SecretKey::from_seed(&std::array::from_fn(byte));
    let later = trust::history::Frontier::new().point(1 << 63);
    let note = trust::checkpoint::note(volume.parse().unwrap(), &later, &key).unwrap();
    let (status, _, _) = post(&witnesses[0].url, &format!("old 0\n\n{note}"));
    assert_eq!(status, 200);
    witnesses[1].kill();
    people.write("two");
    let urls = [0, 1, 2].map(|at: usize| witnesses[at].url.as_str());
    let refused = people.run(&asking(&PUBLISH, &urls)).ends(30);
    let why = format!(
        "this log is over: the witness has cosigned the log {}",
        1_u64 << 63
    );
    assert!(refused.err.contains(&why), "{}", refused.err);
    // The operator finds it, with the signature of the log's key.
    let logs = cosigned(&people, "w1").records("log");
    let last = logs.iter().find(|log| log["epoch"] == 1_u64 << 63);
    let kept = last.unwrap()["note"].as_str().unwrap().to_owned();
    assert!(kept.starts_with(&note), "{kept}");
}

#[test]
fn witnesses_are_told_of_another_key_of_the_log() {
    let (people, volume, mut witnesses) = begun();
    people.new_key("p2");
    let new = people.key("p2");
    let add = format!("log={new}");
    signed_policy(&people, &["--add", &add], &add);
    // The version that is shown is cosigned already.
    let install = people
        .home
        .command(&["policy", "install", "next-p", "repo"])
        .env("BULLA_STATE_DIR", people.path("state-repository"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&install.stderr);
    assert!(install.status.success(), "{told}");
    assert!(told.contains("--volume VOLUMEID=KEY"), "{told}");
    people.write("two");
    let publish = [&PUBLISH[..], &["--key", "p2"]].concat();
    let urls = [0, 1, 2].map(|at: usize| witnesses[at].url.as_str());
    let refused = people.run(&asking(&publish, &urls)).ends(30);
    let why = "no key of this log has signed the checkpoint";
    assert!(refused.err.contains(why), "{}", refused.err);
    for witness in &mut witnesses {
        witness.kill();
    }
    let follows = format!("{volume}={new}");
    let told = ["w1", "w2"]
        .map(|name| Witness::start_with(&people, name, &volume, &["--volume", &follows]));
    let urls = [0, 1].map(|at: usize| told[at].url.as_str());
    people.run(&asking(&publish, &urls)).ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "two");
}
