//! The floor as a state machine. Publishers, owners, thieves and mirrors act at random; one reader judges and
//! adopts the heads that it is shown. In every run only a policy with `lower` lowers the floor, time does not run
//! back, and nothing by a removed key is adopted.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use trust::error::Class;
use trust::handle::Handle;
use trust::head::Head;
use trust::policy::{Roles, Successor};
use trust::root::RootRecord;
use trust::signatures::Signatures;

use crate::world::*;

#[derive(Debug, Clone)]
enum Act {
    /// The current publisher publishes.
    Publish { skip: u64 },
    /// A holder of an earlier publisher key signs a record under the policy of that key.
    Forge { policy: usize, version: u64 },
    /// Owners take the publisher role from one key and give it to another.
    Rotate {
        last: usize,
        next_log: bool,
        lower: bool,
    },
    /// A mirror shows some earlier head with some beginning of the chain.
    Show {
        head: usize,
        policies: usize,
        adopt: bool,
    },
    /// Time passes, or the clock is set back.
    Clock { seconds: i64 },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (1u64..4).prop_map(|skip| Act::Publish { skip }),
        2 => (any::<usize>(), 1u64..40).prop_map(|(policy, version)| Act::Forge { policy, version }),
        1 => (any::<usize>(), any::<bool>(), any::<bool>())
            .prop_map(|(last, next_log, lower)| Act::Rotate { last, next_log, lower }),
        8 => (any::<usize>(), any::<usize>(), any::<bool>())
            .prop_map(|(head, policies, adopt)| Act::Show { head, policies, adopt }),
        1 => (-400_000i64..400_000).prop_map(|seconds| Act::Clock { seconds }),
    ]
}

/// The publisher under policy `number`; each policy has its own.
fn publisher(number: usize) -> u8 {
    100 + number as u8
}

fn roles_of(number: usize) -> Roles {
    Roles {
        publishers: threshold(1, &[publisher(number)]),
        ..roles()
    }
}

struct Play {
    world: World,
    clock: u64,
    version: u64,
    heads: Vec<Head>,
    /// Records that the publisher signed while its policy was the newest.
    honest: BTreeSet<[u8; 32]>,
}

impl Play {
    fn new() -> Play {
        Play {
            world: World::with_genesis(roles_of(0), u64::MAX, &[1]),
            clock: NOW,
            version: 0,
            heads: vec![],
            honest: BTreeSet::new(),
        }
    }

    fn publish(&mut self, skip: u64) {
        self.version += skip;
        let record = RootRecord {
            start: self.clock,
            ..self.world.record(self.version)
        };
        let newest = self.world.policies.len() - 1;
        let head = self.world.head_of(&record, &[publisher(newest)]);
        self.world.advance(&head);
        self.honest.insert(head.record.hash());
        self.heads.push(head);
    }

    fn forge(&mut self, policy: usize, version: u64) {
        let policy = policy % self.world.policies.len();
        if policy == self.world.policies.len() - 1 {
            return;
        }
        let mut record = RootRecord {
            start: self.clock,
            policy_number: policy as u64,
            policy_hash: self.world.policies[policy].hash(),
            root: Handle::from_bytes([0xee; 32]),
            ..self.world.record(version)
        };
        let signed = &self.world.policies[policy];
        if policy > 0 {
            record.log.epoch = read_policy(signed, self.world.volume).log_epoch();
        } else {
            record.log.epoch = 0;
        }
        let head = self.world.head_of(&record, &[publisher(policy)]);
        self.heads.push(head);
    }

    fn rotate(&mut self, last: usize, next_log: bool, lower: bool) {
        if self.world.policies.len() > 20 {
            return;
        }
        let honest: Vec<&Head> = self
            .heads
            .iter()
            .filter(|h| self.honest.contains(&h.record.hash()))
            .collect();
        let last = (!honest.is_empty()).then(|| honest[last % honest.len()]);
        let number = self.world.policies.len();
        let policy = Successor {
            roles: roles_of(number),
            log_epoch: self.world.log.epoch + u64::from(next_log),
            lower: lower && last.is_some(),
            ..self.world.successor(last)
        };
        if let (true, Some(last)) = (policy.lower, &policy.last) {
            self.version = last.version;
        }
        self.world.rotate(&policy, &[1]);
    }
}

proptest! {
    #[test]
    fn only_a_policy_lowers_the_floor(acts in vec(act(), 1..60)) {
        let mut play = Play::new();
        let mut floor = play.world.floor();
        let mut cache = Signatures::default();
        for act in acts {
            match act {
                Act::Publish { skip } => play.publish(skip),
                Act::Forge { policy, version } => play.forge(policy, version),
                Act::Rotate { last, next_log, lower } => play.rotate(last, next_log, lower),
                Act::Clock { seconds } => play.clock = play.clock.saturating_add_signed(seconds),
                Act::Show { .. } if play.heads.is_empty() => {}
                Act::Show { head, policies, adopt } => {
                    let head = Head {
                        policies: crate::world::window(
                            &play.world.policies[..1 + policies % play.world.policies.len()],
                        ),
                        ..play.heads[head % play.heads.len()].clone()
                    };
                    let terms = trust::judge::Terms::strict(play.clock);
                    let Ok(mut offer) = floor.judge(&head, &terms, &mut cache) else {
                        continue;
                    };
                    let next = if adopt {
                        // A reader that has adopted a forged record does not find it in the log, and no
                        // replica has tiles of the log that a forged record names.
                        if let Err(why) = play.world.show_growth(&floor, &mut offer) {
                            // The record to grow from: the adopted one, or the `last` of a policy that is new
                            // to this reader.
                            let under = floor.observe(&offer).unwrap();
                            let both = [under.adopted().unwrap().record_hash, offer.record_hash];
                            let is_lie = matches!(why.class(), Class::Fork | Class::Integrity);
                            prop_assert!(is_lie, "{}", why);
                            prop_assert!(!both.iter().all(|hash| play.honest.contains(hash)));
                            continue;
                        }
                        floor.adopt(&offer).unwrap()
                    } else {
                        floor.observe(&offer).unwrap()
                    };
                    let known = floor.policy().map_or(-1, |p| p.0 as i64);
                    let knows = next.policy().map_or(-1, |p| p.0 as i64);
                    prop_assert!(knows >= known);
                    let lowers = (known + 1..=knows).any(|number| {
                        offer.chain.get(number as u64).is_some_and(|(policy, _)| policy.lowers())
                    });
                    prop_assert!(lowers || next.newest_start() >= floor.newest_start());
                    prop_assert!(next.newest_start() <= floor.newest_start().max(play.clock + 600));
                    let version = |f: &trust::floor::Floor| f.adopted().map_or(0, |a| a.version);
                    prop_assert!(lowers || version(&next) >= version(&floor));
                    if let (true, Some(last)) = (knows > known, offer.chain.newest().last()) {
                        prop_assert!(version(&next) >= last.version);
                    }
                    if !adopt && knows == known {
                        prop_assert_eq!(next.adopted(), floor.adopted());
                    }
                    // A forged record is adopted only while the reader has seen nothing newer than the policy
                    // of its key, never once it knows the policy that removed the key.
                    if offer.record.policy_number < offer.chain.newest().number() {
                        prop_assert!(play.honest.contains(&offer.record_hash));
                    }
                    prop_assert!(offer.valid_until > play.clock);
                    floor = trust::floor::Floor::decode(&next.encode()).unwrap();
                }
            }
        }
    }
}
