//! The policy chain as a model that is explored exhaustively in small: what owners, a publisher, a thief, mirrors and time
//! do in every order, and one reader (design `trees.md`, *Policy* and *Floor*; decision 0077).
//!
//! A step is somebody's act (see [`Act`]), or mirrors that show the reader any one or two heads, with or without the
//! blocks. After each step the promises of [`Reader::check`] must hold. In each state that is met it is asked whether
//! the owners can bring the reader back: show it what is there, or sign one more policy and one more version. Thus no
//! reader that an honest quorum of owners can reach is ever stuck, and none believes what no valid quorum signed.
//!
//! The checks are checked: without `lower`, without `refused`, with a reader that forgets, and with a thief that has a
//! quorum the exploration must find something.

mod reader;
mod volume;

use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use trust::signatures::Signatures;

use self::reader::Reader;
use self::volume::{Act, Version, Volume, YEAR};
use crate::world::WEEK;

/// What is explored.
struct Scope {
    begin: Volume,
    reader: Reader,
    /// Acts besides those of [`Volume::acts`].
    also: Vec<Act>,
    /// At most so many acts.
    acts: usize,
    /// Whether any two heads are shown together, or only the honest one beside any other.
    any_two: bool,
    /// What the owners may use to bring a reader back.
    tools: Tools,
    /// Whether the reader forgets all that it knew.
    forgets: bool,
}

#[derive(Clone, Copy)]
struct Tools {
    lower: bool,
    refuse: bool,
}

const ALL_TOOLS: Tools = Tools {
    lower: true,
    refuse: true,
};

impl Scope {
    fn of(begin: Volume) -> Scope {
        Scope {
            reader: Reader::new(&begin),
            begin,
            also: Vec::new(),
            acts: 2,
            any_two: false,
            tools: ALL_TOOLS,
            forgets: false,
        }
    }
}

/// How a reader comes back to the owners' newest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// It is shown what is there.
    Shown,
    /// The owners sign another policy.
    Policy,
    /// Its user settles the fork (`bulla fork settle`).
    Settled,
    /// None of these.
    Stuck,
}

/// What an exploration met.
#[derive(Debug, Default)]
struct Met {
    states: usize,
    /// States by the way back.
    ways: [usize; 4],
    /// States without a way back although the reader knows no forged policy.
    stuck_without_forgery: usize,
    /// States in which the user must settle a fork although the reader is on the owners' line.
    settled_on_the_line: usize,
    /// States in which a reader knows a policy that the owners did not sign.
    deceived: usize,
    broken: Option<String>,
}

impl Met {
    fn count(&self, way: Way) -> usize {
        self.ways[way as usize]
    }
}

struct Search<'a> {
    scope: &'a Scope,
    signatures: Signatures,
    seen: HashSet<[u8; 32]>,
    queue: VecDeque<(Rc<Volume>, Reader, usize)>,
    met: Met,
}

fn explore(scope: &Scope) -> Met {
    let mut search = Search {
        scope,
        signatures: Signatures::new(1 << 20),
        seen: HashSet::new(),
        queue: VecDeque::new(),
        met: Met::default(),
    };
    search.push(Rc::new(scope.begin.clone()), scope.reader.clone(), 0);
    while let Some((volume, reader, acts)) = search.queue.pop_front() {
        if search.met.broken.is_some() {
            break;
        }
        search.act(&volume, &reader, acts);
        search.show(&volume, &reader, acts);
    }
    search.met
}

impl Search<'_> {
    /// Acts come in the order of their number, so a state is first met with the fewest.
    fn push(&mut self, volume: Rc<Volume>, reader: Reader, acts: usize) {
        let mut print = blake3::Hasher::new();
        volume.print(&mut print);
        print.update(&reader.floor.encode());
        if !self.seen.insert(*print.finalize().as_bytes()) {
            return;
        }
        self.met.states += 1;
        self.met.deceived += usize::from(reader.knows_a_forged_policy(&volume));
        if !volume.is_revoked() {
            let way = self.way_back(&volume, &reader);
            self.met.ways[way as usize] += 1;
            let forged = reader.knows_a_forged_policy(&volume);
            self.met.stuck_without_forgery += usize::from(way == Way::Stuck && !forged);
            let on_the_line = reader.is_on_the_line(&volume);
            self.met.settled_on_the_line += usize::from(way == Way::Settled && on_the_line);
        }
        self.queue.push_back((volume, reader, acts));
    }

    fn act(&mut self, volume: &Rc<Volume>, reader: &Reader, acts: usize) {
        if acts == self.scope.acts {
            return;
        }
        let all = volume.acts();
        for act in all.into_iter().chain(self.scope.also.iter().copied()) {
            let mut next = Volume::clone(volume);
            if !volume.is_revoked() || matches!(act, Act::Wait(_)) {
                next.act(act);
                self.push(Rc::new(next), reader.clone(), acts + 1);
            }
        }
    }

    fn show(&mut self, volume: &Rc<Volume>, reader: &Reader, acts: usize) {
        let heads = volume.heads();
        let mut shown: Vec<Vec<(usize, usize)>> = heads.iter().map(|head| vec![*head]).collect();
        let firsts = match self.scope.any_two {
            true => heads.clone(),
            false => vec![volume.honest_head()],
        };
        for first in firsts {
            let others = heads.iter().filter(|other| **other != first);
            shown.extend(others.map(|other| vec![first, *other]));
        }
        for heads in shown {
            let from = match self.scope.forgets {
                true => Reader::new(volume),
                false => reader.clone(),
            };
            for next in from.shown(volume, &heads, &mut self.signatures) {
                if let Err(why) = next.check(reader, volume) {
                    self.met.broken = Some(format!("{why}: shown {heads:?}"));
                    return;
                }
                if next.floor != reader.floor {
                    self.push(Rc::clone(volume), next, acts);
                }
            }
        }
    }

    /// How the owners bring this reader to their newest version, whatever a mirror shows beside it.
    fn way_back(&mut self, volume: &Volume, reader: &Reader) -> Way {
        let mut present = volume.clone();
        present.publish();
        if !present.is_over() && self.comes_back(&present, reader) {
            return Way::Shown;
        }
        let mut later = volume.clone();
        let refused = match self.scope.tools.refuse {
            true => volume.rivals(),
            false => Vec::new(),
        };
        later.recover(self.scope.tools.lower, refused);
        later.publish();
        if self.comes_back(&later, reader) {
            return Way::Policy;
        }
        match self.settled(&later, reader) {
            Some(reader) if self.comes_back(&later, &reader) => Way::Settled,
            _ => Way::Stuck,
        }
    }

    fn comes_back(&mut self, volume: &Volume, reader: &Reader) -> bool {
        let honest = volume.honest_head();
        let line = volume.line(volume.tip);
        let mut others = volume.heads();
        others.retain(|(tip, record)| !line.contains(tip) || !volume.records[*record].honest);
        let beside = others.into_iter().map(|other| vec![other, honest]);
        let mut shown = std::iter::once(vec![honest]).chain(beside);
        shown.all(|heads| {
            let next = reader.show(volume, &heads, &mut self.signatures);
            next.has(volume, volume.newest)
        })
    }

    /// The reader after its user has decided for the owners' policy in the fork that it met.
    fn settled(&mut self, volume: &Volume, reader: &Reader) -> Option<Reader> {
        let shown = reader.show(volume, &[volume.honest_head()], &mut self.signatures);
        let line = volume.line(volume.tip);
        let mut ours = line
            .iter()
            .map(|number| volume.policies[*number].signed.hash());
        let keep = ours.find(|hash| shown.floor.forks().rival(hash).is_some())?;
        let floor = shown.floor.settle(&keep).ok()?;
        Some(Reader { floor })
    }
}

fn is_long() -> bool {
    std::env::var_os("BULLA_LONG").is_some()
}

/// Acts to explore: more in the long form.
fn acts(short: usize) -> usize {
    short + usize::from(is_long())
}

/// A record ends, and a policy.
const TIME: [Act; 2] = [Act::Wait(WEEK + 1), Act::Wait(YEAR + 1)];

/// Nothing is broken, and at least so many states were met.
fn sound(met: &Met, states: usize) {
    println!("{met:?}");
    assert_eq!(met.broken, None);
    assert!(met.states >= states, "only {} states", met.states);
}

/// A thief has the publisher's key and one of three owner keys, and has signed a version that the publisher will never
/// reach. In the long form the search begins before that, and records and policies end too.
#[test]
fn thief_of_a_publisher_key_and_one_owner_key_deceives_no_reader_for_good() {
    let mut begin = Volume::new(&[11, 3]);
    if !is_long() {
        begin.act(Act::ForgeRecord(0, Version::Far));
    }
    let met = explore(&Scope {
        also: TIME.into_iter().filter(|_| is_long()).collect(),
        acts: acts(1),
        ..Scope::of(begin)
    });
    sound(&met, 70);
    assert_eq!(met.deceived, 0);
    assert_eq!(met.count(Way::Stuck) + met.count(Way::Settled), 0);
    assert!(met.count(Way::Policy) > 0, "the thief did nothing");
}

/// No thief; one owner key is lost, policies and records expire, and mirrors show anything that was ever signed.
#[test]
fn rotations_and_time_leave_no_reader_behind() {
    let met = explore(&Scope {
        also: TIME.to_vec(),
        acts: acts(2),
        any_two: true,
        ..Scope::of(Volume::new(&[]))
    });
    sound(&met, 100);
    assert_eq!(met.count(Way::Stuck) + met.count(Way::Settled), 0);
}

/// A volume whose owners have replaced all of their keys; a thief has a quorum of the old ones.
fn retired() -> Volume {
    let mut volume = Volume::new(&[]);
    volume.act(Act::ReplaceOwners);
    volume.act(Act::Publish);
    volume.stolen = vec![1, 2, 11];
    volume
}

#[test]
fn thieves_of_all_retired_owner_keys_move_no_reader_that_knows_their_successors() {
    let begin = retired();
    let mut signatures = Signatures::default();
    let reader = Reader::new(&begin).show(&begin, &[begin.honest_head()], &mut signatures);
    let met = explore(&Scope {
        reader,
        acts: acts(1),
        ..Scope::of(begin)
    });
    sound(&met, 28);
    assert_eq!(met.deceived, 0);
    assert_eq!(met.count(Way::Stuck) + met.count(Way::Settled), 0);
}

/// Thieves of a retired quorum can deceive a newcomer that sees only them: nothing that it knows tells them from owners.
/// A pinned policy does (rule 6). A newcomer that they have not reached is never stuck.
#[test]
fn thieves_of_all_retired_owner_keys_reach_only_newcomers_that_they_alone_meet() {
    let met = explore(&Scope {
        acts: acts(1),
        ..Scope::of(retired())
    });
    sound(&met, 140);
    assert!(met.deceived > 0);
    assert_eq!(met.stuck_without_forgery, 0);
    assert_eq!(met.settled_on_the_line, 0);
}

/// Owners sign two successors of one policy by mistake: the next policy settles it for readers that know the branch that
/// goes on, or neither. For one that knows the other branch its user decides.
#[test]
fn owners_who_contradict_themselves_settle_it() {
    let mut begin = Volume::new(&[]);
    begin.act(Act::RotatePublisher);
    let met = explore(&Scope {
        also: vec![Act::Contradict],
        any_two: true,
        acts: acts(1),
        ..Scope::of(begin)
    });
    sound(&met, 50);
    assert_eq!(met.count(Way::Stuck), 0);
    assert_eq!(met.settled_on_the_line, 0);
    assert!(
        met.count(Way::Settled) > 0,
        "no reader met the other branch"
    );
}

/// After the last policy of a volume no reader opens anything new.
#[test]
fn readers_open_nothing_new_after_the_volume_has_ended() {
    let mut begin = Volume::new(&[11]);
    let mut signatures = Signatures::default();
    let reader = Reader::new(&begin).show(&begin, &[begin.honest_head()], &mut signatures);
    begin.act(Act::Revoke);
    begin.act(Act::ForgeRecord(0, Version::Next));
    begin.act(Act::ForgeRecord(1, Version::Far));
    let knows = reader.show(&begin, &[begin.honest_head()], &mut signatures);
    assert_eq!(knows.floor.policies().len(), 2);
    for head in begin.heads() {
        let after = knows.show(&begin, &[head], &mut signatures);
        assert_eq!(after.floor.adopted(), knows.floor.adopted(), "{head:?}");
    }
}

/// More rotations than a reader keeps policies, and a reader from any time before.
#[test]
fn reader_that_was_away_for_many_rotations_comes_back() {
    let mut volume = Volume::new(&[]);
    let mut signatures = Signatures::default();
    let mut readers = vec![Reader::new(&volume)];
    for _ in 0..12 {
        let reader = Reader::new(&volume);
        let parts = parts(&volume);
        let (floor, _) = reader
            .floor
            .learn_parts(&[&parts], volume.clock, &mut signatures);
        let reader = Reader { floor };
        readers.push(reader.show(&volume, &[volume.honest_head()], &mut signatures));
        volume.act(Act::Wait(YEAR / 2));
        volume.act(Act::ReplaceOwner);
        volume.act(Act::RotatePublisher);
        volume.act(Act::Publish);
    }
    for reader in readers {
        let parts = parts(&volume);
        let (floor, _) = reader
            .floor
            .learn_parts(&[&parts], volume.clock, &mut signatures);
        let reader = Reader { floor };
        let back = reader.show(&volume, &[volume.honest_head()], &mut signatures);
        assert!(back.has(&volume, volume.newest));
    }
}

fn parts(volume: &Volume) -> Vec<trust::statement::Signed> {
    let line = volume.line(volume.tip).into_iter();
    line.map(|number| volume.policies[number].signed.clone())
        .collect()
}

#[test]
fn without_lower_a_far_version_of_a_thief_leaves_readers_stuck() {
    let met = explore(&Scope {
        tools: Tools {
            lower: false,
            ..ALL_TOOLS
        },
        acts: 1,
        ..Scope::of(Volume::new(&[11]))
    });
    assert!(met.count(Way::Stuck) > 0, "{met:?}");
}

#[test]
fn without_refused_policies_a_contradiction_leaves_readers_stuck() {
    let mut begin = Volume::new(&[]);
    begin.act(Act::RotatePublisher);
    begin.act(Act::Contradict);
    let met = explore(&Scope {
        tools: Tools {
            refuse: false,
            ..ALL_TOOLS
        },
        any_two: true,
        acts: 0,
        ..Scope::of(begin)
    });
    let without_a_user = met.count(Way::Stuck) + met.settled_on_the_line;
    assert!(without_a_user > 0, "{met:?}");
}

#[test]
fn reader_that_forgets_is_found_to_go_back() {
    let mut begin = Volume::new(&[]);
    begin.act(Act::Publish);
    let met = explore(&Scope {
        forgets: true,
        acts: 0,
        ..Scope::of(begin)
    });
    assert!(met.broken.is_some_and(|why| why.contains("went back")));
}

#[test]
fn thief_with_a_quorum_of_owners_is_believed() {
    for (stolen, believed) in [(vec![1, 11], false), (vec![1, 2, 11], true)] {
        let mut begin = Volume::new(&[]);
        begin.stolen = stolen;
        begin.act(Act::ForgePolicy(0));
        let heads = begin.heads();
        let forged: Vec<_> = heads.into_iter().filter(|(tip, _)| *tip == 1).collect();
        assert!(!forged.is_empty());
        let reader = Reader::new(&begin).show(&begin, &forged, &mut Signatures::default());
        assert_eq!(reader.knows_a_forged_policy(&begin), believed);
    }
}
