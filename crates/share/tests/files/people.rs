//! Decisions about members.

use share::files::{Answer, Call, Refused};
use trust_shared::decision::{Decision, Label, Role};
use trust_shared::principal::{Device, Principal};

use crate::asks::regular;
use crate::net::Net;
use crate::world::{key, refused, user};

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

#[test]
fn members_are_listed_with_their_roles() {
    let mut net = Net::new(2, 20);
    net.admit(2, Some(Role::Reader));
    let Answer::Members(roll) = net.call(1, Call::Members) else {
        panic!("no members");
    };
    let (members, group) = (&roll.members, net.root().principal);
    let role = |device| members.role(Device(device), group, roll.at);
    let roles = [role(0), role(1), role(2), role(3)];
    let expected = [
        Some(Role::Admin),
        Some(Role::Writer),
        Some(Role::Reader),
        None,
    ];
    assert_eq!(roles, expected);
    assert_eq!(members.user(Device(2)), Some(user(2)));
    assert_eq!(members.label(user(1)), Some(&label("user 1")));
}

#[test]
fn decision_that_cannot_take_effect_is_refused_before_it_is_sent() {
    let mut net = Net::new(2, 21);
    let group = Principal::from_bytes([50; 32]);
    let nobody = Principal::from_bytes([51; 32]);
    let admit = |number: u32, user| Decision::AdmitDevice {
        device: Device(number),
        key: key(9).public(),
        user,
    };
    let known = Decision::AddUser {
        user: user(1),
        label: label("another"),
    };
    let taken = Decision::AddGroup {
        group,
        label: label("user 1"),
    };
    let last = Decision::RemoveDevice { device: Device(0) };
    let cases = [
        (0, known, Refused::Exists),
        (0, taken, Refused::Exists),
        (0, admit(1, user(1)), Refused::Exists),
        (0, admit(2, nobody), Refused::NotFound),
        (0, last, Refused::Needed),
        (1, admit(2, user(1)), Refused::NotPermitted),
    ];
    let before = net.entries;
    for (at, decision, why) in cases {
        let answer = net.call(at, Call::Decide(decision.clone()));
        assert_eq!(answer, refused(why), "{decision:?}");
    }
    assert_eq!(net.entries, before);
}

#[test]
fn decision_counts_when_its_call_is_answered() {
    let mut net = Net::new(2, 22);
    let group = Principal::from_bytes([50; 32]);
    let team = label("team");
    net.decide(0, Decision::AddGroup { group, label: team });
    let (user, role) = (user(1), Role::Writer);
    net.decide(0, Decision::Grant { group, user, role });
    let call = Call::Create {
        place: net.at("plan"),
        number: 3,
        inode: Box::new(regular("ours")),
        owner: Some(group),
        replace: false.into(),
    };
    assert_eq!(net.done(1, call).principal, group);
    net.decide(0, Decision::Revoke { group, user });
    let write = net.write("plan", "mine");
    assert_eq!(net.call(1, write), refused(Refused::NotPermitted));
}

#[test]
fn decision_that_another_one_overtakes_is_not_reported_as_made() {
    let mut net = Net::new(2, 25);
    let (group, role) = (net.root().principal, Role::Admin);
    let second = user(1);
    net.decide(
        0,
        Decision::Grant {
            group,
            user: second,
            role,
        },
    );
    net.rest();
    // Two administrators give one number to two devices.
    let admit = |number| {
        Call::Decide(Decision::AdmitDevice {
            device: Device(7),
            key: key(number).public(),
            user: second,
        })
    };
    let tickets = [net.issue(0, admit(30)), net.issue(1, admit(31))];
    let answers = [net.wait(0, tickets[0]), net.wait(1, tickets[1])];
    assert!(answers.contains(&Answer::Settled), "{answers:?}");
    assert!(answers.contains(&refused(Refused::Exists)), "{answers:?}");
}

#[test]
fn removed_device_reads_and_writes_no_more() {
    let mut net = Net::new(3, 23);
    let make = net.create("f", regular("text"), false);
    net.done(2, make);
    net.decide(0, Decision::RemoveDevice { device: Device(2) });
    net.rest();
    // Its engine knows that it is no member, or is told so when it asks.
    let write = net.write("f", "more");
    let ticket = net.issue(2, write);
    for _ in 0..200 {
        net.turn();
    }
    let answer = net.nodes[2].answers.get(&ticket);
    assert!(answer.is_none_or(|(answer, _)| *answer == refused(Refused::NotPermitted)));
    assert_eq!(net.found(1, "f").inode.size, 4);
}

#[test]
fn roster_of_the_entries_that_concern_it_is_the_same() {
    let mut net = Net::new(3, 24);
    for number in 0..20 {
        let make = net.create(&format!("f{number}"), regular(""), false);
        net.done(number % 3, make);
    }
    net.admit(3, Some(Role::Reader));
    net.rest();
    let full = net.server.ledger().volume().clone();
    let (mut some, mut taken) = (net.first_roster(), 0);
    for (at, entry) in net.stored_entries() {
        if some.concerns(&entry) {
            ordering::volume::Roll::extend(&mut some, at, &entry);
            taken += 1;
        }
    }
    assert!(taken < 25, "{taken} entries concern members");
    let end = u64::MAX;
    for device in (0..5).map(Device) {
        let role = |roster: &ordering::roster::Roster| {
            let members = roster.members();
            let group = net.root().principal;
            (members.role(device, group, end), members.admitted(device))
        };
        assert_eq!(role(&some), role(&full), "{device:?}");
    }
    assert_eq!(some.lost(), None);
}
