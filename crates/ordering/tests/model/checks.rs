//! What must hold in every state, whatever the server does.
//!
//! The *view* of a device is what it did itself, what authors attest on its log, what an administrator counted, and
//! what its programs used although nobody attested it (marked). Each view must
//!
//! 0. be whole: what a device's programs were told is in its log;
//! 1. be legal: run one after the other on one machine (`posix`), the calls give the answers that programs got;
//! 2. keep the order of real time: a call that ended before another began comes first;
//! 3. keep membership: no entry of a device before its admission or after its removal;
//! 4. form a tree with the other views: two views that share an entry have the same log up to it (strict). Under the
//!    relaxed policy one marked entry of each device, and the Resume after it, may lie in two logs.
//!
//! And no device signs two entries with one number, or stops as if its key ran elsewhere.

use std::rc::Rc;

use crate::action::{describe, print};
use crate::broken::{Broken, Check};
use crate::chain::Chain;
use crate::engine::ClientEngine;
use crate::history::Given;
use crate::liar::deed;
use crate::posix::Posix;
use crate::protocol::{
    Answer, Call, CallId, Change, Device, Entry, Id, Leaf, Op, Point, leaf_id, letter,
};
use crate::state::DEVICES;
use crate::world::World;

pub fn check<E: ClientEngine>(world: &World<E>) -> Result<(), Broken> {
    once(world)?;
    stops(world)?;
    lapses(world)?;
    crate::recovery::starts(world)?;
    let views = views(world);
    for view in &views {
        let say = |Broken { check, what }| {
            let log = print(&view.chain);
            check.finds(format!("{what}\n     {}'s log: {log}", letter(view.device)))
        };
        whole(view).map_err(say)?;
        let steps = steps(world, view);
        legal(world, view, &steps).map_err(say)?;
        in_time(world, &steps).map_err(say)?;
        members(world, view).map_err(say)?;
    }
    for (at, one) in views.iter().enumerate() {
        for other in &views[..at] {
            apart(world, one, other).map_err(|Broken { check, what }| {
                let logs = [one, other]
                    .map(|view| format!("{}: {}", letter(view.device), print(&view.chain)));
                check.finds(format!("{what}\n     {}\n     {}", logs[0], logs[1]))
            })?;
        }
    }
    Ok(())
}

/// A device's view.
pub struct View {
    pub device: Device,
    pub chain: Chain,
    /// Positions in the view.
    inside: u64,
    /// Those that need no mark.
    sure: u64,
    /// Own entries that a power cut took from the device's memory.
    forgotten: u64,
    given: Vec<(CallId, Given)>,
}

fn views<E: ClientEngine>(world: &World<E>) -> Vec<View> {
    let mut views = Vec::new();
    for life in &world.history.past {
        let mut view = view(world, life.device, &life.chain, life.given.clone());
        let truly =
            attested(world, life.device, &life.chain, is_second(&life.chain)).max(life.kept);
        for (at, (leaf, _)) in life.chain.leaves().into_iter().enumerate() {
            let own = author(leaf) == Some(life.device);
            view.forgotten |= u64::from(own && at as u64 >= truly) << at;
        }
        views.push(view);
    }
    for (device, client) in world.clients.iter().enumerate() {
        let device = device as Device;
        let start = client.start().map_or(0, |start| start.size);
        if client.frontier().size() < start {
            // It does nothing before its log is what the owners have signed.
            continue;
        }
        views.push(view(
            world,
            device,
            client.frontier(),
            world.history.given(device),
        ));
    }
    views
}

fn author(leaf: &Leaf) -> Option<Device> {
    match leaf {
        Leaf::Entry(entry) => Some(entry.body.device),
        Leaf::Marks(_) => None,
    }
}

/// Size of the longest prefix of `chain` that the device has signed for, in a message or an entry, delivered or not.
/// What it signed may go on differently: it covers what both logs have.
fn attested<E>(world: &World<E>, device: Device, chain: &Chain, second: bool) -> u64 {
    let signed = match second {
        true => &world.signed_later,
        false => &world.signed,
    };
    let signed = signed.iter().filter(|(by, _)| *by == device);
    signed
        .map(|(_, prefix)| prefix.shared(chain))
        .max()
        .unwrap_or(0)
}

fn view<E: ClientEngine>(
    world: &World<E>,
    device: Device,
    chain: &Chain,
    given: Vec<(CallId, Given)>,
) -> View {
    let start = world.clients[usize::from(device)].start();
    let now = chain.point() == world.clients[usize::from(device)].frontier().point();
    let second = is_second(chain) || now && start.is_some();
    let sizes: Vec<u64> = (0..DEVICES as Device)
        .map(|author| attested(world, author, chain, second))
        .collect();
    let mut sure = 0;
    for (at, (leaf, _)) in chain.leaves().into_iter().enumerate() {
        if let Some(author) = author(leaf) {
            let supported = author == device || sizes[usize::from(author)] > at as u64;
            sure |= u64::from(supported) << at;
        }
    }
    // What others used although it is not attested: their answers, which are in the view, rest on it.
    let told = world
        .history
        .records
        .iter()
        .filter_map(|record| record.given);
    let told = told
        .chain(given.iter().map(|(_, given)| *given))
        .filter(|given| chain.contains(given.at));
    let marked = told.fold(0, |all, given| all | given.marked);
    // In the second epoch the owners' prefix counts by their decision, also the device's own entries in it: it may have
    // had them elsewhere on a branch that it has left.
    let begun = begun(world, device, chain);
    sure &= !begun;
    let inside = sure | marked | begun | accepted(chain, sure, world.scope.admin);
    View {
        device,
        chain: chain.clone(),
        inside,
        sure,
        forgotten: 0,
        given,
    }
}

/// Whether a log has entries of the second epoch. What devices sign there attests nothing in the first one.
fn is_second(chain: &Chain) -> bool {
    let later =
        |(leaf, _): (&Leaf, Point)| matches!(leaf, Leaf::Entry(entry) if entry.body.epoch > 0);
    chain.backwards().any(later)
}

/// Positions of the prefix that the owners have signed, for a device of the second epoch.
fn begun<E: ClientEngine>(world: &World<E>, device: Device, chain: &Chain) -> u64 {
    let client = &world.clients[usize::from(device)];
    match client.start() {
        Some(start) if chain.contains(start) => (1 << start.size) - 1,
        _ => 0,
    }
}

/// Positions that the administrator has seen and counts, by an entry that is surely its own decision on this log.
fn accepted(chain: &Chain, sure: u64, admin: Device) -> u64 {
    let leaves = chain.leaves();
    let mut accepted = 0;
    for (at, entry, op) in ops(chain) {
        if sure >> at & 1 == 0 || entry.body.device != admin {
            continue;
        }
        for change in &op.changes {
            if let Change::Accept(silent) = change {
                let seen = leaves
                    .iter()
                    .take(entry.body.heading.seen.size as usize)
                    .enumerate();
                let counted = seen.filter(|(_, (leaf, _))| author(leaf) == Some(*silent));
                accepted |= counted.fold(0, |all, (at, _)| all | 1 << at);
            }
        }
    }
    accepted
}

fn ops(chain: &Chain) -> Vec<(u64, Rc<Entry>, Op)> {
    let mut ops = Vec::new();
    for (at, (leaf, _)) in chain.leaves().into_iter().enumerate() {
        if let Leaf::Entry(entry) = leaf {
            ops.extend(
                entry
                    .body
                    .ops
                    .iter()
                    .map(|op| (at as u64, entry.clone(), op.clone())),
            );
        }
    }
    ops
}

/// One call at one place of a view.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub call: CallId,
    what: Call,
    /// The answer that a program got for this place. Otherwise the call may have had effect here, or not.
    must: Option<Answer>,
    /// Here the call only takes a lock.
    takes: bool,
}

/// The view as calls in order. What has an answer for another place of this log is left out here.
fn steps<E>(world: &World<E>, view: &View) -> Vec<Step> {
    let mut steps = Vec::new();
    for (at, (leaf, point)) in view.chain.leaves().into_iter().enumerate() {
        let mut here = Vec::new();
        if let (Leaf::Entry(entry), true) = (leaf, view.inside >> at & 1 == 1) {
            let takes = entry.body.ops.iter().filter(|op| !op.completes);
            steps.extend(takes.filter_map(|op| taking(world, op)));
            here.extend(
                entry
                    .body
                    .ops
                    .iter()
                    .filter(|op| op.completes)
                    .map(|op| (op.call, deed(op))),
            );
        }
        let own = view
            .given
            .iter()
            .filter(|(_, given)| given.at == point)
            .map(|(call, _)| *call);
        for call in own {
            if !here.iter().any(|(known, _)| *known == call) {
                here.push((call, Call::Put(0)));
            }
        }
        steps.extend(
            here.into_iter()
                .filter_map(|(call, deed)| step(world, view, (call, deed), point)),
        );
    }
    steps
}

/// An operation that only takes the lock of a file, for a write that follows.
fn taking<E>(world: &World<E>, op: &Op) -> Option<Step> {
    let record = world.history.record(op.call)?;
    Some(Step {
        call: op.call,
        what: record.what,
        must: None,
        takes: true,
    })
}

/// `deed`: what the call of the lying member asked for.
fn step<E>(
    world: &World<E>,
    view: &View,
    (call, deed): (CallId, Call),
    point: Point,
) -> Option<Step> {
    let record = world.history.record(call);
    let what = record.map_or(deed, |record| record.what);
    let own = view
        .given
        .iter()
        .find(|(given, _)| *given == call)
        .map(|(_, given)| *given);
    let given = own.or_else(|| record.and_then(|record| record.given));
    let must = match given {
        Some(given) if given.answer == Answer::Io => None,
        Some(given) if given.at == point => Some(given.answer),
        Some(given) if view.chain.contains(given.at) => return None,
        _ => None,
    };
    Some(Step {
        call,
        what,
        must,
        takes: false,
    })
}

/// An honest device never gives others evidence that its key signed twice.
fn once<E: ClientEngine>(world: &World<E>) -> Result<(), Broken> {
    let number = |entry: &Entry| {
        (
            entry.body.device,
            entry.body.heading.incarnation,
            entry.body.heading.n,
        )
    };
    match world
        .entries
        .windows(2)
        .find(|pair| number(&pair[0]) == number(&pair[1]) && !world.is_liar(pair[0].body.device))
    {
        Some(pair) => Err(Check::Once.finds(format!(
            "two entries with one number: {}",
            describe(&Leaf::Entry(pair[0].clone()))
        ))),
        None => Ok(()),
    }
}

/// No device has two engines with one key here, so none has a reason to stop. (An alarm is no state of a world.)
fn stops<E: ClientEngine>(world: &World<E>) -> Result<(), Broken> {
    match world.clients.iter().position(|client| client.stopped()) {
        Some(device) if world.alarms.is_empty() => Err(Check::Stops.finds(format!(
            "a Resume of {} that was sent before ends its incarnation",
            letter(device as Device)
        ))),
        _ => Ok(()),
    }
}

fn lapses<E: ClientEngine>(world: &World<E>) -> Result<(), Broken> {
    if world.scope.lapses == 0 {
        return Ok(());
    }
    let genesis = world.scope.genesis();
    let mut clients = world.clients.iter();
    clients.try_for_each(|client| world.lapses.check(client.frontier(), &genesis))
}

fn whole(view: &View) -> Result<(), Broken> {
    match view
        .given
        .iter()
        .find(|(_, given)| !view.chain.contains(given.at))
    {
        Some((call, _)) => Err(Check::Whole.finds(format!(
            "{call:?} was answered and is not in its device's log any more"
        ))),
        None => Ok(()),
    }
}

fn legal<E>(world: &World<E>, view: &View, steps: &[Step]) -> Result<(), Broken> {
    let machine = || Posix::new(world.scope.admin);
    if run(steps, machine(), 0, false) {
        return Ok(());
    }
    let said = steps.iter().map(|step| match step.must {
        _ if step.takes => format!("{:?} perhaps takes the lock", step.call),
        Some(answer) => format!("{:?} {:?} = {answer:?}", step.call, step.what),
        None => format!("{:?} {:?} perhaps", step.call, step.what),
    });
    Err(reason(world, view, steps).finds(format!(
        "no machine gives these answers to {}: {}",
        letter(view.device),
        said.collect::<Vec<_>>().join("; ")
    )))
}

/// Why a view is not legal.
fn reason<E>(world: &World<E>, view: &View, steps: &[Step]) -> Check {
    let with_all = View {
        inside: u64::MAX,
        chain: view.chain.clone(),
        given: view.given.clone(),
        ..*view
    };
    let machine = || Posix::new(world.scope.admin);
    if run(&self::steps(world, &with_all), machine(), 0, false) {
        Check::Support
    } else if run(steps, machine(), 0, true) {
        Check::Twice
    } else {
        Check::Answers
    }
}

/// Whether the calls can be run one after the other with these answers. Unless `again`, none of them runs twice.
fn run(steps: &[Step], mut machine: Posix, mut done: u32, again: bool) -> bool {
    for (at, step) in steps.iter().enumerate() {
        let twice = !again && done & step.call.bit() != 0;
        match step.must {
            Some(_) if twice => return false,
            Some(answer) => {
                if machine
                    .run(step.call, step.what)
                    .is_some_and(|right| right != answer)
                {
                    return false;
                }
                done |= step.call.bit();
            }
            None if twice => {}
            None if step.takes => {
                let mut other = machine.clone();
                other.take(step.call, step.what);
                if run(&steps[at + 1..], other, done, again) {
                    return true;
                }
            }
            None => {
                let mut other = machine.clone();
                other.run(step.call, step.what);
                if run(&steps[at + 1..], other, done | step.call.bit(), again) {
                    return true;
                }
            }
        }
    }
    true
}

fn in_time<E>(world: &World<E>, steps: &[Step]) -> Result<(), Broken> {
    let answered = steps.iter().filter(|step| step.must.is_some());
    let answered = answered.fold(0, |all, step| all | step.call.bit());
    let mut done = 0;
    for step in steps {
        let before = world
            .history
            .record(step.call)
            .map_or(0, |record| record.before);
        if before & answered & !done != 0 {
            return Err(Check::Time.finds(format!(
                "{:?} began after a call had ended that comes later in the log",
                step.call
            )));
        }
        if step.must.is_some() {
            done |= step.call.bit();
        }
    }
    Ok(())
}

/// No entry of a device before its admission or after its removal, both decided by somebody who surely did so here.
fn members<E: ClientEngine>(world: &World<E>, view: &View) -> Result<(), Broken> {
    let mut allowed = world.scope.members;
    let mut decided: Vec<(u64, Device, bool)> = Vec::new();
    for (at, (leaf, _)) in view.chain.leaves().into_iter().enumerate() {
        let Leaf::Entry(entry) = leaf else { continue };
        let body = &entry.body;
        let has = |positions: u64| positions >> at & 1 == 1;
        if has(view.inside) && allowed >> body.device & 1 == 0 {
            return Err(Check::Members.finds(format!(
                "{} writes at {at} and is no member there",
                letter(body.device)
            )));
        }
        if body.device != world.scope.admin {
            continue;
        }
        decided.retain(|(place, device, active)| {
            let now = *place < body.heading.attests();
            if now {
                allowed = allowed & !(1 << device) | u8::from(*active) << device;
            }
            !now
        });
        for change in body.ops.iter().flat_map(|op| &op.changes) {
            if let (Change::Member { device, active }, true) = (change, has(view.sure)) {
                decided.push((at as u64, *device, *active));
            }
        }
    }
    Ok(())
}

/// Two views share no entry that lies in different logs.
fn apart<E: ClientEngine>(world: &World<E>, one: &View, other: &View) -> Result<(), Broken> {
    let theirs: Vec<(Id, Point, usize)> = entries(other);
    for (id, point, at) in entries(one) {
        let Some((_, elsewhere, there)) = theirs.iter().find(|(theirs, ..)| *theirs == id) else {
            continue;
        };
        if *elsewhere == point {
            continue;
        }
        let sure = |view: &View, at: usize| view.sure >> at & 1 == 1;
        let accepted = !sure(one, at) || !sure(other, *there);
        let author = world.entries.iter().find(|entry| entry.id == id);
        let Some(author) = author else { continue };
        // What a member that works with the server writes can lie anywhere.
        if !accepted && !world.is_liar(author.body.device) {
            return Err(Check::Tree.finds(format!(
                "both {} and {} count {}, in two logs",
                letter(one.device),
                letter(other.device),
                describe(&Leaf::Entry(author.clone()))
            )));
        }
    }
    in_both_logs(world, one, other)
}

/// Whether the devices use them or not: beyond a fork, two logs share one entry of each device, and the Resume after it.
fn in_both_logs<E: ClientEngine>(world: &World<E>, one: &View, other: &View) -> Result<(), Broken> {
    let mut crossed = [0; DEVICES];
    let mut resumes = [0; DEVICES];
    let theirs = other.chain.leaves();
    for (leaf, point) in one.chain.leaves() {
        let Leaf::Entry(entry) = leaf else { continue };
        let elsewhere = theirs
            .iter()
            .any(|(theirs, place)| leaf_id(theirs) == entry.id && *place != point);
        let counts =
            !entry.body.heading.resume || !entry.body.ops.is_empty() || world.scope.resume_counts;
        if world.is_liar(entry.body.device) {
            continue;
        }
        let author = usize::from(entry.body.device);
        crossed[author] += u8::from(elsewhere && counts);
        resumes[author] += u8::from(elsewhere && entry.body.heading.resume);
    }
    if let Some(author) = resumes.iter().position(|count| *count > 1) {
        return Err(Check::Resumes.finds(format!(
            "{} Resumes of {} lie in two logs",
            resumes[author],
            letter(author as Device)
        )));
    }
    match crossed.iter().position(|count| *count > 1) {
        Some(author) => Err(Check::Crossed.finds(format!(
            "{} entries of {} lie in two logs",
            crossed[author],
            letter(author as Device)
        ))),
        None => Ok(()),
    }
}

/// Entries of a view, where they lie. Without those that the device forgot.
fn entries(view: &View) -> Vec<(Id, Point, usize)> {
    let leaves = view.chain.leaves().into_iter().enumerate();
    let inside = leaves.filter(|(at, (leaf, _))| {
        view.inside >> at & 1 == 1 && view.forgotten >> at & 1 == 0 && author(leaf).is_some()
    });
    inside
        .map(|(at, (leaf, point))| (leaf_id(leaf), point, at))
        .collect()
}
