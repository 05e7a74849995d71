//! A second epoch of the log, after a fork (decision 0052): the owners let a prefix stand, and devices go over to the
//! new epoch whenever they like, or never. The server goes on as it likes, in both epochs.
//!
//! A device goes over with an empty log. What it had beyond the prefix is lost work: its programs were told answers that
//! the new log need not have, as after a power cut.
//!
//! While the log is shorter than the start, a device does nothing that others can notice. So the server shows it the
//! prefix at once; only where a rule is left out it may show other leaves there too.

use ordering::ablation::Rule as Client;

use crate::action::Action;
use crate::broken::{Broken, Check};
use crate::chain::Chain;
use crate::engine::{ClientEngine, Output, Timer};
use crate::exhaustive::{FILE, holds, long, walks};
use crate::explorer::depth;
use crate::mutants::refuse;
use crate::protocol::Call::{self, Append, Read};
use crate::protocol::{CallId, Device, Leaf, Reply, Request, letter};
use crate::rules::Rule;
use crate::world::{Scope, World};

/// What goes wrong in the second epoch if nobody checks it.
const UNCHECKED: [Rule; 3] = [
    Rule::Client(Client::BeginsWithStart),
    Rule::Client(Client::SignsFromStart),
    Rule::Client(Client::EpochOfPosition),
];

impl<E: ClientEngine> World<E> {
    pub fn recovery_actions(&self, device: Device, actions: &mut Vec<Action>) {
        if !self.scope.recovers || self.turn.is_some() {
            return;
        }
        let client = &self.clients[usize::from(device)];
        match (&self.standing, client.start()) {
            (None, _) => actions.push(Action::Recover(device)),
            (Some(_), None) => actions.push(Action::Follow(device)),
            (Some(_), Some(_)) if client.frontier().size() == 0 => {
                actions.push(Action::Start(device));
            }
            (Some(_), Some(_)) => {}
        }
    }

    /// A device has signed for this prefix, in the epoch in which it is.
    pub(crate) fn sign(&mut self, device: Device, prefix: Option<&Chain>) {
        let Some(prefix) = prefix else { return };
        // A longer prefix of the same log says the same and more.
        let weaker =
            |(by, signed): &(Device, Chain)| *by == device && prefix.contains(signed.point());
        let client = self.clients.get(usize::from(device));
        let signed = match client.is_some_and(|client| client.start().is_some()) {
            true => &mut self.signed_later,
            false => &mut self.signed,
        };
        signed.retain(|signed| !weaker(signed));
        signed.push((device, prefix.clone()));
    }

    /// Whether the server shows a device one leaf after the other.
    pub fn is_shown_leaves(&self, device: Device) -> bool {
        let client = &self.clients[usize::from(device)];
        let start = client.start().map_or(0, |start| start.size);
        let unchecked = UNCHECKED.iter().any(|rule| !self.scope.rules.has(*rule));
        unchecked || client.frontier().size() >= start
    }

    /// The owners let the log of a device stand, as far as it is here.
    pub fn recovered(&self, device: Device) -> Option<World<E>> {
        let log = self.clients[usize::from(device)].frontier().clone();
        let mut next = self.clone();
        next.standing = Some(log);
        Some(next)
    }

    /// A device goes over: what its programs were told beyond the prefix is lost.
    pub fn gone_over(&mut self, device: Device) {
        let Some(standing) = &self.standing else {
            return;
        };
        let log = self.clients[usize::from(device)].frontier().clone();
        let shared = log.shared(standing);
        self.history.cut(device, &log, shared);
    }
}

/// A device of the second epoch does nothing before its log has the start.
pub fn starts<E: ClientEngine>(world: &World<E>) -> Result<(), Broken> {
    for (device, client) in world.clients.iter().enumerate() {
        let Some(start) = client.start() else {
            continue;
        };
        if client.ready() && !client.frontier().contains(start) {
            let device = letter(device as Device);
            return Err(Check::Start.finds(format!("{device} works on another log")));
        }
    }
    Ok(())
}

#[test]
fn second_epoch_breaks_nothing() {
    let append: &[Call] = &[Append(0)];
    let each = |first, second| Scope::new(&[(FILE, first), (append, second)]).recovers();
    holds("recovery 1+1", &each(1, 1).impatient().world());
    holds("recovery 1+0, power cut", &each(1, 0).powers(1).world());
    if long() {
        holds("recovery 2+1", &each(2, 1).world());
        holds("recovery 1+1, power cut", &each(1, 1).powers(1).world());
        holds("recovery 1+1, kill", &each(1, 1).kills(1).world());
    }
}

#[test]
fn second_epoch_breaks_nothing_on_long_ways() {
    let seeds = if long() { 100_000 } else { 300 };
    walks(seeds, |seed| {
        let scope = Scope::new(&[(FILE, 4), (FILE, 4), (FILE, 4)]).recovers();
        match seed % 3 {
            0 => scope.impatient(),
            1 => scope.kills(1).powers(1).impatient(),
            _ => scope.powers(1).relaxed(),
        }
    });
}

#[test]
fn second_epoch_without_a_rule_breaks() {
    let (read, append): (&[Call], &[Call]) = (&[Read(0)], &[Append(0)]);
    // Marks may stand anywhere, so there are other logs of the same size.
    let one = Scope {
        leaves: 5,
        ..Scope::new(&[(read, 1), (read, 1)]).recovers()
    };
    let two = Scope {
        leaves: 6,
        ..Scope::new(&[(read, 1), (append, 1)]).recovers()
    };
    let [start, signs, epoch] = UNCHECKED;
    refuse(&[
        (&[start], one.clone(), Check::Start),
        (&[start, signs], one.clone(), Check::Start),
        (&[epoch], two, Check::Tree),
    ]);
    // A log that is too short is refused with its note, so that no device signs there.
    assert!(
        depth(
            &one.without(&[signs]).world(),
            crate::explorer::Limit::states(200_000)
        )
        .is_ok()
    );
}

/// Two devices that know the same log, the first of which has gone over and has nothing yet.
fn gone_over() -> (crate::device::Client, crate::device::Client) {
    let append: &[Call] = &[Append(0)];
    let mut clients = Scope::new(&[(append, 1), (append, 1)]).world().clients;
    let (other, first) = (clients.remove(1), clients.remove(0));
    let [other, mut first] = [other, first].map(|client| crate::device::Client::clone(&client));
    first.follow(other.frontier().point(), 128);
    (first, other)
}

fn reply(log: &Chain, leaf: &Leaf, more: bool) -> Reply {
    Reply {
        from: log.size(),
        note: log.push(leaf.clone()).point(),
        leaves: vec![leaf.clone()],
        more,
        attests: Vec::new(),
        asked: false,
        refused: None,
        unstored: None,
    }
}

#[test]
fn device_signs_nothing_before_the_start() {
    let (mut first, other) = gone_over();
    let leaves = other.frontier().since(0);
    for leaf in &leaves {
        assert!(!first.armed(Timer::Resume) && !first.armed(Timer::Attest));
        let shown = reply(first.frontier(), leaf, true);
        assert!(first.deliver(&shown).is_empty());
    }
    assert_eq!(first.frontier().point(), other.frontier().point());
    assert!(first.armed(Timer::Resume));
    // A server that says that this is all.
    let (mut first, _) = gone_over();
    let told = first.deliver(&reply(&Chain::default(), &leaves[0], false));
    assert!(matches!(told[..], [Output::Alarm(_)]), "{told:?}");
}

#[test]
fn entry_of_another_epoch_is_refused() {
    let (mut first, mut other) = gone_over();
    let leaves = other.frontier().since(0);
    let sent = other.issue(CallId::new(1, 0), Append(0));
    let entry = sent.into_iter().find_map(|output| match output {
        Output::Send(Request::Entry(entry)) => Some(Leaf::Entry(entry)),
        _ => None,
    });
    for leaf in &leaves {
        let shown = reply(first.frontier(), leaf, true);
        assert!(first.deliver(&shown).is_empty());
    }
    // It follows the prefix, and its form is right but for the epoch.
    let shown = reply(first.frontier(), &entry.unwrap(), false);
    let told = first.deliver(&shown);
    assert!(matches!(told[..], [Output::Alarm(_)]), "{told:?}");
    assert_eq!(first.frontier().point(), other.frontier().point());
}
