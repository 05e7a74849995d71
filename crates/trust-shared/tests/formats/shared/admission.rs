//! An invitation and the messages of an admission.

use trust::Reject;
use trust::device::DeviceKey;
use trust_shared::invitation::{BadLine, Challenge, Invitation, Joiner, Opening, Request, Secret};

use super::Shared;
use crate::key;
use crate::lines::hex;
use crate::lines::{Lines, patch};

pub fn add(lines: &mut Lines, shared: &Shared) {
    let invitation = Invitation {
        volume: shared.volume,
        policy: shared.policies[0].hash(),
        epoch: 0,
        prefix: shared.prefix(3),
        server: "bulla://files.example:7600".to_owned(),
        secret: Secret::from_bytes([5; 16]),
    };
    let line = invitation.to_line().unwrap();
    lines.context("invitation", line.as_bytes());
    let read = |line: &str| match Invitation::from_line(line) {
        Ok(_) => Ok(()),
        Err(BadLine::Content(why)) => Err(why),
        Err(BadLine::Text(_)) => Err(Reject::Malformed {
            what: "invitation",
            why: "mistyped",
        }),
    };
    lines.add(
        "line",
        "of-three-leaves",
        "good",
        line.as_bytes(),
        read(&line),
    );
    let mistyped = line.replacen("inv1q", "inv1p", 1);
    lines.add(
        "line",
        "mistyped",
        "malformed",
        mistyped.as_bytes(),
        read(&mistyped),
    );

    let joiner = Joiner::new(
        invitation.clone(),
        DeviceKey::from(&key(8).public()),
        [1; 32],
    );
    let good = joiner.request().encode();
    let ask = |bytes: &[u8]| Request::decode(bytes)?.challenge(&invitation, [2; 32]);
    let mut add = |name: &str, verdict: &str, bytes: &[u8]| {
        lines.add("request", name, verdict, bytes, ask(bytes));
    };
    add("of-device-8", "good", &good);
    add("of-another-device", "not-signed", &patch(&good, 17, &[1]));
    add(
        "of-another-invitation",
        "not-signed",
        &patch(&good, 1, &[0; 16]),
    );
    add("later-format", "unsupported", &patch(&good, 0, &[1]));
    add("cut", "malformed", &good[..112]);
    let pending = ask(&good).unwrap();
    let challenge = pending.challenge().encode();
    let open = |bytes: &[u8]| joiner.open(&Challenge::decode(bytes)?);
    let mut add = |name: &str, verdict: &str, bytes: &[u8]| {
        lines.add("challenge", name, verdict, bytes, open(bytes));
    };
    add("of-02", "good", &challenge);
    add("of-03", "not-signed", &patch(&challenge, 33, &[3]));
    add("cut", "malformed", &challenge[..96]);
    let (opening, words) = open(&challenge).unwrap();
    let opening = opening.encode();
    let text = hex(words.to_string().as_bytes());
    let device = |bytes: &[u8]| pending.device(&Opening::decode(bytes)?, &words);
    lines.add_within(
        "opening",
        "of-01",
        "good",
        &opening,
        &text,
        device(&opening),
    );
    let other = patch(&opening, 33, &[2]);
    lines.add("opening", "of-02", "not-signed", &other, device(&other));
    lines.add(
        "opening",
        "cut",
        "malformed",
        &opening[..64],
        device(&opening[..64]),
    );
}
