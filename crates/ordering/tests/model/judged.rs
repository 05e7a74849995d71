//! A world whose histories the search judges too, beside the checks or instead of them.

use std::hash::Hash;

use crate::action::Action;
use crate::broken::{Broken, Check};
use crate::engine::ClientEngine;
use crate::explorer::{Right, System};
use crate::search::fork_consistent;
use crate::wide::Wide;
use crate::world::World;

#[derive(Clone)]
pub struct Judged<E> {
    world: World<E>,
    /// Whether `checks` looks at it too.
    checked: bool,
    /// Histories that were found right.
    pub right: Right,
}

impl<E: ClientEngine> Judged<E> {
    pub fn new(world: World<E>, checked: bool) -> Judged<E> {
        Judged {
            world,
            checked,
            right: Right::default(),
        }
    }

    /// The history without positions.
    fn history(&self) -> u128 {
        let mut into = Wide::default();
        for record in &self.world.history.records {
            (
                record.call,
                record.what,
                record.before,
                record.given.map(|given| given.answer),
            )
                .hash(&mut into);
        }
        into.finish128()
    }
}

impl<E: ClientEngine> System for Judged<E> {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        self.world.actions()
    }

    fn step(&self, action: &Action) -> Option<Judged<E>> {
        let world = self.world.step(action)?;
        Some(Judged {
            world,
            checked: self.checked,
            right: self.right.clone(),
        })
    }

    fn fingerprint(&self) -> u128 {
        self.world.fingerprint()
    }

    fn check(&self) -> Result<(), Broken> {
        if self.checked {
            self.world.check()?;
        }
        let history = self.history();
        if self.right.borrow().contains(&history) {
            return Ok(());
        }
        if !fork_consistent(&self.world.history) {
            let what = "the search finds no orders of the calls that fork consistency allows";
            return Err(Check::Search.finds(what));
        }
        self.right.borrow_mut().insert(history);
        Ok(())
    }

    fn tell(&self, action: &Action) -> String {
        self.world.tell(action)
    }
}
