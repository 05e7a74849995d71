//! Goes through all states of a system, or through some by seed, and prints how a broken one came about.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::time::Instant;

use crate::broken::{Broken, Check};
use crate::protocol::Id;

/// What can be explored: states, and what may happen next in each.
pub trait System: Clone {
    type Action: Clone + fmt::Display;

    fn actions(&self) -> Vec<Self::Action>;
    /// None: it cannot happen, or leads nowhere.
    fn step(&self, action: &Self::Action) -> Option<Self>;
    fn fingerprint(&self) -> u128;
    fn check(&self) -> Result<(), Broken>;
    /// Whether a state in which nothing more happens may be left like this.
    fn check_end(&self) -> Result<(), Broken> {
        Ok(())
    }
    /// The action and what comes of it, for people to read.
    fn tell(&self, action: &Self::Action) -> String;
}

/// How a broken state came about.
pub struct Failure {
    pub broken: Broken,
    pub steps: Vec<String>,
    pub tried: Tried,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}: {}", self.broken.check, self.broken.what)?;
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:3}. {step}", number + 1)?;
        }
        write!(f, "({:?})", self.tried)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tried {
    pub states: u64,
    pub steps: u64,
    pub ends: u64,
    /// The limit was reached: not all states were visited.
    pub cut: bool,
}

/// Where an exploration ends that is not done.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub states: u64,
    pub until: Option<Instant>,
}

impl Limit {
    pub fn states(states: u64) -> Limit {
        Limit {
            states,
            until: None,
        }
    }

    fn is_reached(&self, states: u64) -> bool {
        // Reading the clock costs more than a step.
        let late = || self.until.is_some_and(|until| Instant::now() >= until);
        states >= self.states || states.is_multiple_of(1024) && late()
    }
}

/// Fingerprints need no further hashing.
#[derive(Clone, Copy, Default, Debug)]
pub struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, word: u128) {
        self.0 = word as u64;
    }
}

/// Fingerprints of what was found right: nobody looks at it again.
pub type Right = Rc<RefCell<HashSet<u128, BuildHasherDefault<Fingerprint>>>>;

type Visited<T> = HashMap<u128, T, BuildHasherDefault<Fingerprint>>;

/// Every state once, with little memory, for systems that are expected to hold. Also refuses a system that can go in a
/// circle: then something might never end.
pub fn depth<S: System>(start: &S, limit: Limit) -> Result<Tried, Box<Failure>> {
    let mut tried = Tried::default();
    // True while the state is on the way to the current one.
    let mut visited: Visited<bool> = Visited::default();
    let fingerprint = start.fingerprint();
    visited.insert(fingerprint, true);
    let mut stack = vec![Open {
        state: start.clone(),
        fingerprint,
        actions: start.actions(),
        next: 0,
        moved: false,
    }];
    tried.states = 1;
    while let Some(top) = stack.last_mut() {
        let Some(action) = top.actions.get(top.next).cloned() else {
            let ends = !top.moved;
            let verdict = if ends { top.state.check_end() } else { Ok(()) };
            tried.ends += u64::from(ends);
            visited.insert(top.fingerprint, false);
            if let Err(broken) = verdict {
                return Err(Box::new(minimal(start, &path(&stack), broken, tried)));
            }
            stack.pop();
            continue;
        };
        top.next += 1;
        let Some(next) = top.state.step(&action) else {
            continue;
        };
        top.moved = true;
        tried.steps += 1;
        let fingerprint = next.fingerprint();
        if let Some(open) = visited.get(&fingerprint) {
            if *open && fingerprint != top.fingerprint {
                let broken = Check::Circle.finds("this could go on for ever");
                return Err(Box::new(failure(start, &path(&stack), broken, tried)));
            }
            continue;
        }
        if let Err(broken) = next.check() {
            return Err(Box::new(minimal(start, &path(&stack), broken, tried)));
        }
        if limit.is_reached(tried.states) {
            return Ok(Tried { cut: true, ..tried });
        }
        tried.states += 1;
        visited.insert(fingerprint, true);
        let actions = next.actions();
        stack.push(Open {
            state: next,
            fingerprint,
            actions,
            next: 0,
            moved: false,
        });
    }
    Ok(tried)
}

struct Open<S: System> {
    state: S,
    fingerprint: u128,
    actions: Vec<S::Action>,
    next: usize,
    moved: bool,
}

fn path<S: System>(stack: &[Open<S>]) -> Vec<S::Action> {
    let taken = stack.iter().filter(|open| open.next > 0);
    taken
        .map(|open| open.actions[open.next - 1].clone())
        .collect()
}

/// The state after these steps, as traces print them. One with a star happens until it cannot happen again.
pub fn after<S: System>(start: S, steps: &[&str]) -> S {
    let try_step = |state: &S, step: &str| {
        let mut actions = state.actions().into_iter();
        let action = actions.find(|action| action.to_string() == step)?;
        state.step(&action)
    };
    let mut state = start;
    for step in steps {
        let once = step.strip_suffix('*').unwrap_or(step);
        let next = try_step(&state, once);
        state = next.unwrap_or_else(|| panic!("{step} cannot happen"));
        while once != *step
            && let Some(next) = try_step(&state, once)
        {
            state = next;
        }
    }
    state
}

/// Some ways through the states, by seed, each of at most `length` steps.
pub fn walk<S: System>(start: &S, seed: u64, length: usize) -> Result<Tried, Box<Failure>> {
    let mut drawn = 0u64;
    let mut random = |bound: usize| {
        drawn += 1;
        (Id::of(&(seed, drawn)).0 % bound as u128) as usize
    };
    let mut state = start.clone();
    let mut taken = Vec::new();
    let mut tried = Tried::default();
    for _ in 0..length {
        let mut actions = state.actions();
        let next = loop {
            if actions.is_empty() {
                break None;
            }
            let action = actions.swap_remove(random(actions.len()));
            if let Some(next) = state.step(&action) {
                break Some((action, next));
            }
        };
        let Some((action, next)) = next else {
            tried.ends += 1;
            let verdict = state.check_end();
            return verdict.map_or_else(
                |broken| Err(Box::new(minimal(start, &taken, broken, tried))),
                |()| Ok(tried),
            );
        };
        taken.push(action);
        tried.states += 1;
        tried.steps += 1;
        if let Err(broken) = next.check() {
            return Err(Box::new(minimal(start, &taken, broken, tried)));
        }
        state = next;
    }
    Ok(tried)
}

/// Leaves out steps without which the same check fails.
fn minimal<S: System>(start: &S, actions: &[S::Action], broken: Broken, tried: Tried) -> Failure {
    let mut actions = actions.to_vec();
    let mut broken = broken;
    let mut shorter = true;
    while shorter {
        shorter = false;
        for size in [8, 4, 2, 1] {
            let mut at = 0;
            while at + size <= actions.len() {
                let mut fewer = actions.clone();
                fewer.drain(at..at + size);
                match replay(start, &fewer) {
                    Some((steps, found)) if found.check == broken.check => {
                        fewer.truncate(steps);
                        actions = fewer;
                        broken = found;
                        shorter = true;
                    }
                    _ => at += 1,
                }
            }
        }
    }
    failure(start, &actions, broken, tried)
}

/// The number of steps after which the state is broken, if these steps break it.
fn replay<S: System>(start: &S, actions: &[S::Action]) -> Option<(usize, Broken)> {
    let mut state = start.clone();
    for (number, action) in actions.iter().enumerate() {
        state = state.step(action)?;
        if let Err(broken) = state.check() {
            return Some((number + 1, broken));
        }
    }
    let ends = state
        .actions()
        .iter()
        .all(|action| state.step(action).is_none());
    let verdict = if ends { state.check_end() } else { Ok(()) };
    verdict.err().map(|broken| (actions.len(), broken))
}

fn failure<S: System>(start: &S, actions: &[S::Action], broken: Broken, tried: Tried) -> Failure {
    let mut state = start.clone();
    let mut steps = Vec::new();
    for action in actions {
        steps.push(state.tell(action));
        let Some(next) = state.step(action) else {
            break;
        };
        state = next;
    }
    Failure {
        broken,
        steps,
        tried,
    }
}
