//! One reader of the model: it judges what mirrors show, keeps its floor, and adopts as `volume` does. Beside it what must
//! hold after each step, computed from who signed what and not from the code that is tested.

use trust::floor::Floor;
use trust::head::Head;
use trust::judge::{Offer, Terms};
use trust::signatures::Signatures;

use super::volume::{Log, Policy, Volume};

/// What a reader remembers.
#[derive(Clone)]
pub struct Reader {
    pub floor: Floor,
}

impl Reader {
    /// A reader that has seen nothing.
    pub fn new(volume: &Volume) -> Reader {
        Reader {
            floor: Floor::new(volume.id),
        }
    }

    /// The reader after mirrors have shown these heads together, and adopted the newest version that it may.
    pub fn show(
        &self,
        volume: &Volume,
        heads: &[(usize, usize)],
        signatures: &mut Signatures,
    ) -> Reader {
        let [_, fetched] = self.shown(volume, heads, signatures);
        fetched
    }

    /// The same where mirrors withhold the blocks of that version, and where they do not.
    pub fn shown(
        &self,
        volume: &Volume,
        heads: &[(usize, usize)],
        signatures: &mut Signatures,
    ) -> [Reader; 2] {
        let shown: Vec<Head> = heads.iter().map(|head| volume.head(*head)).collect();
        let verdict = self
            .floor
            .judge_all(&shown, &Terms::strict(volume.clock), signatures);
        let floor = verdict.floor;
        let logs = heads.iter().map(|(_, record)| &volume.records[*record].log);
        let passed = verdict.offers.into_iter().zip(logs);
        let mut offers: Vec<(Offer, &Log)> = passed
            .filter_map(|(offer, log)| Some((offer.ok()?, log)))
            .collect();
        offers.sort_by_key(|(offer, _)| std::cmp::Reverse(offer.record.version));
        let mut offers = offers.into_iter();
        let adopted = offers.find_map(|(offer, log)| adopt(&floor, offer, log));
        let adopted = adopted.unwrap_or_else(|| floor.clone());
        // What is on the disk is all that a reader has after a restart.
        [floor, adopted].map(|floor| Reader {
            floor: Floor::decode(&floor.encode()).unwrap(),
        })
    }

    /// Whether it has adopted this record.
    pub fn has(&self, volume: &Volume, record: usize) -> bool {
        let hash = volume.records[record].signed.hash();
        self.floor
            .adopted()
            .is_some_and(|adopted| adopted.record_hash == hash && adopted.root.is_some())
    }

    /// Whether a policy that the honest owners did not sign is among those that it knows.
    pub fn knows_a_forged_policy(&self, volume: &Volume) -> bool {
        self.known(volume).any(|(_, policy)| !policy.honest)
    }

    /// Whether all policies that it knows are on the honest owners' line.
    pub fn is_on_the_line(&self, volume: &Volume) -> bool {
        let line = volume.line(volume.tip);
        self.known(volume).all(|(number, _)| line.contains(&number))
    }

    fn known<'a>(&'a self, volume: &'a Volume) -> impl Iterator<Item = (usize, &'a Policy)> {
        let known = self.floor.policies().iter();
        known.map(|signed| {
            let is_it = |policy: &Policy| policy.signed.hash() == signed.hash();
            let number = volume.policies.iter().position(is_it).unwrap();
            (number, &volume.policies[number])
        })
    }

    /// What must hold after a step of this reader, from `before`.
    ///
    /// # Errors
    /// The promise that is broken.
    pub fn check(&self, before: &Reader, volume: &Volume) -> Result<(), &'static str> {
        let known: Vec<(usize, &Policy)> = self.known(volume).collect();
        for pair in known.windows(2) {
            let [(parent, older), (_, newer)] = pair else {
                continue;
            };
            if newer.parent != Some(*parent) {
                return Err("it knows policies that do not follow one another");
            }
            if !older.owners.is_met_by(&newer.signers) {
                return Err("it knows a policy that too few of the owners before it signed");
            }
            if !newer.owners.is_met_by(&newer.signers) {
                return Err("it knows a policy that too few of its own owners signed");
            }
        }
        let learned = before.floor.policies().len();
        let lowered = known.iter().skip(learned).any(|(_, policy)| policy.lower);
        let version = |reader: &Reader| reader.floor.adopted().map_or(0, |adopted| adopted.version);
        if version(self) < version(before) && !lowered {
            return Err("it went back although no policy says so");
        }
        self.check_adopted(before, volume, &known)
    }

    fn check_adopted(
        &self,
        before: &Reader,
        volume: &Volume,
        known: &[(usize, &Policy)],
    ) -> Result<(), &'static str> {
        let hash = |reader: &Reader| {
            let adopted = reader.floor.adopted();
            let opened = adopted.filter(|adopted| adopted.root.is_some());
            opened.map(|adopted| adopted.record_hash)
        };
        let (Some(adopted), Some((_, newest))) = (hash(self), known.last()) else {
            return Ok(());
        };
        if hash(before) == Some(adopted) {
            return Ok(());
        }
        let mut records = volume.records.iter();
        let record = records.find(|record| record.signed.hash() == adopted);
        let record = record.ok_or("it opened a record that nobody made")?;
        let under = &volume.policies[record.policy];
        if !known.iter().any(|(number, _)| *number == record.policy) {
            return Err("it opened a record under a policy that it does not know");
        }
        if !under.publishers.is_met_by(&record.signers) {
            return Err("it opened a record that its publishers did not sign");
        }
        let is_last = newest.last == Some(adopted);
        if !is_last && !newest.publishers.is_met_by(&record.signers) {
            return Err("it opened a record that the newest publishers did not sign");
        }
        Ok(())
    }
}

fn adopt(floor: &Floor, mut offer: Offer, log: &Log) -> Option<Floor> {
    if let Some(mut prefix) = floor.unproved(&offer).ok()? {
        prefix.supply(&log.leaves.concat()).ok()?;
        offer.prove(prefix).ok()?;
    }
    floor.adopt(&offer).ok()
}
