//! Cosignatures: where the policy has a quorum of witnesses, no reader believes a head without them. So a new head is shown
//! together with its cosignatures, or not at all.
//!
//! A witness that has cosigned a log with a version in it never cosigns another log. So the version is remembered as
//! *pending* before any witness hears of it ([`Memory::prepare`]). If too few of them answer, or this process ends, the next
//! command goes on from the pending version: the log continues, and nobody sees two histories.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use store::repository::Repository;
use store::writer::Writer;
use trust::checkpoint::{self, MAX_CHECKPOINT_BYTES};
use trust::head::Head;
use trust::history::LogPoint;
use trust::history::proof::consistency;
use trust::key::PublicKey;
use trust::policy::{Roles, Threshold};
use trust::root::RootRecord;
use trust::signer::{self, Signer};
use trust::statement::VolumeId;
use trust::tally::Tally;
use trust::witness::{MAX_NAME_BYTES, MAX_SUBMISSION_BYTES, Note, Submission};

use crate::confirming::Stamped;
use crate::publish_error::{Missing, PublishError, Said};
use crate::signing_files::{read_file, write_checkpoint};
use crate::signing_memory::{Memory, NextHead};

/// How cosignatures come.
#[derive(Debug, Default)]
pub struct Cosigning {
    /// Witnesses to ask. Without them, and without files, a version that needs cosignatures is refused before it is signed.
    pub witnesses: Option<Box<dyn Witnesses>>,
    /// Files with cosigned checkpoints.
    pub cosigned: Vec<PathBuf>,
    /// Where to write what witnesses without a network are to cosign. Nothing is shown then.
    pub checkpoint_out: Option<PathBuf>,
    /// The size of the log from which that file proves that the log only grew. `None`: that of the head which is shown.
    pub checkpoint_from: Option<u64>,
}

/// Witnesses that can be asked.
pub trait Witnesses: std::fmt::Debug + Send + Sync {
    /// Asks all of them. Gives what each one says, until enough have answered.
    fn ask(&self, question: &Question<'_>) -> Vec<Answer>;
}

/// What witnesses are asked.
pub struct Question<'a> {
    /// The checkpoint, signed by the log's keys.
    pub note: &'a Note,
    /// The size of the log that they have probably cosigned last.
    pub likely: u64,
    /// The proof that the log continues its first leaves, of which there are so many.
    pub proof: &'a (dyn Fn(u64) -> Option<Vec<[u8; 32]>> + Sync),
    /// Whether these answers are enough.
    pub is_enough: &'a (dyn Fn(&[&[u8]]) -> bool + Sync),
}

/// The answer of a witness.
#[derive(Debug)]
pub struct Answer {
    /// Its address.
    pub place: String,
    /// Signature lines, not verified, or why there are none.
    pub lines: Result<Vec<u8>, String>,
    /// Whether it says that it has cosigned another log of this volume. Nothing proves that.
    pub contradicts: bool,
}

/// How gathering ended.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "without enough cosignatures the head is not to be shown"]
pub(crate) enum Gathered {
    /// The head has all that readers demand. So many bytes of segments and index were written on the way.
    Enough(u64),
    /// Witnesses without a network are to cosign the file; nothing is to be shown yet.
    Waits,
}

/// What a head is cosigned with.
pub(crate) struct Gathering<'a> {
    pub keys: &'a [&'a dyn Signer],
    pub cosigning: &'a Cosigning,
    pub memory: &'a Memory,
    /// A timestamp for the head that others have confirmed together with its cosignatures.
    pub stamped: Option<&'a Stamped>,
    /// For messages.
    pub repository: &'a Path,
}

/// Whether cosignatures can be asked for, before anything is signed.
///
/// # Errors
/// [`PublishError::NoWitness`], [`PublishError::NoLogKey`]; [`PublishError::Impossible`] for a file for witnesses that nobody
/// demands.
pub(crate) fn check(
    roles: &Roles,
    keys: &[PublicKey],
    cosigning: &Cosigning,
    version: u64,
) -> Result<(), PublishError> {
    let needed = roles.witnesses.needed();
    if needed == 0 {
        return match cosigning.checkpoint_out {
            None => Ok(()),
            Some(_) => Err(PublishError::Impossible(
                "the policy of this volume demands no cosignatures",
            )),
        };
    }
    let asks = cosigning.witnesses.is_some() || cosigning.checkpoint_out.is_some();
    if !asks && cosigning.cosigned.is_empty() {
        return Err(PublishError::NoWitness { version, needed });
    }
    if asks && !keys.iter().any(|key| roles.log_keys().keys().contains(key)) {
        return Err(PublishError::NoLogKey { version });
    }
    Ok(())
}

impl Gathering<'_> {
    /// Gives the head the cosignatures that its policy demands. The version is remembered before a witness hears of it, and
    /// all its parts but the head are in the repository then.
    ///
    /// # Errors
    /// [`PublishError::NotCosigned`], and those of [`check`].
    pub(crate) fn gather(
        &self,
        writer: &mut Writer,
        next: &mut NextHead,
    ) -> Result<Gathered, PublishError> {
        let public: Vec<PublicKey> = self.keys.iter().map(|key| key.public()).collect();
        if next.roles.witnesses.needed() == 0 {
            check(&next.roles, &public, self.cosigning, next.version)?;
            next.head.checkpoint = None;
            return Ok(Gathered::Enough(0));
        }
        let shown = Shown::read(writer)?;
        let mut collected = Collected::of(next)?;
        let stamped = self.stamped.and_then(|stamped| stamped.checkpoint.as_ref());
        let before = [next.head.checkpoint.as_ref(), shown.checkpoint.as_ref()];
        for note in before.into_iter().chain([stamped]) {
            collected.take_note(note.map(|note| &note[..]).unwrap_or_default());
        }
        for path in &self.cosigning.cosigned {
            collected.take_file(path)?;
        }
        let mut note = collected.own.clone();
        let out = self.cosigning.checkpoint_out.as_ref();
        let asks = out.is_some() || !collected.is_enough();
        if asks {
            check(&next.roles, &public, self.cosigning, next.version)?;
        }
        let written = self.memory.prepare(writer, next)?;
        if asks {
            self.sign(&mut note, &next.roles)?;
        }
        if let Some(out) = out {
            self.write(out, note, &collected, shown.size, writer.repository())?;
            return Ok(Gathered::Waits);
        }
        if !collected.is_enough() {
            self.ask(&note, &mut collected, shown.size, writer.repository());
        }
        next.head.checkpoint = Some(collected.checkpoint(note.lines()));
        if !collected.is_enough() {
            // What was gathered counts when the same version is tried again.
            self.memory.keep_pending(&next.head.encode()?)?;
            return Err(collected.too_few(next.version));
        }
        Ok(Gathered::Enough(
            written.segment_bytes + written.index_bytes,
        ))
    }

    /// Signs the checkpoint with the log's keys that are here.
    fn sign(&self, note: &mut Note, roles: &Roles) -> Result<(), PublishError> {
        let text = note.text();
        let own = roles.log_keys().keys();
        for key in self.keys.iter().filter(|key| own.contains(&key.public())) {
            let signature = signer::signature(*key, text.as_bytes())?;
            let public = key.public();
            note.add(&checkpoint::log_line(
                note.volume,
                &note.log,
                &public,
                &signature,
            ));
        }
        Ok(())
    }

    /// Writes the file for witnesses without a network, with the cosignatures that are there.
    fn write(
        &self,
        out: &Path,
        mut note: Note,
        collected: &Collected,
        shown: u64,
        repository: &Repository,
    ) -> Result<(), PublishError> {
        let asked = self.cosigning.checkpoint_from;
        let old = asked.unwrap_or(shown.min(note.log.size));
        let proof = proof(repository, &note.log, old).ok_or(PublishError::NoProof {
            path: self.repository.to_owned(),
            from: old,
        })?;
        for line in collected.lines.values() {
            note.add(line);
        }
        let submission = Submission { old, proof, note };
        write_checkpoint(out, &submission.encode())?;
        Ok(())
    }

    fn ask(&self, note: &Note, collected: &mut Collected, shown: u64, repository: &Repository) {
        let Some(witnesses) = &self.cosigning.witnesses else {
            return;
        };
        let log = note.log;
        let prove = |old| proof(repository, &log, old);
        let before = &*collected;
        let is_enough = |answers: &[&[u8]]| {
            let mut with = before.clone();
            for lines in answers {
                with.take(lines);
            }
            with.is_enough()
        };
        let answers = witnesses.ask(&Question {
            note,
            likely: shown.min(log.size),
            proof: &prove,
            is_enough: &is_enough,
        });
        for answer in answers {
            collected.answered(answer);
        }
    }
}

/// The proof that the log continues its first `old` leaves, from the tiles of the repository.
fn proof(repository: &Repository, log: &LogPoint, old: u64) -> Option<Vec<[u8; 32]>> {
    consistency(old, log, |name| {
        let tile = |name| repository.log_tile(log.epoch, name).ok().flatten();
        tile(name).or_else(|| tile(name.full()))
    })
}

/// What the repository shows now.
struct Shown {
    /// Size of the log with the record that is shown.
    size: u64,
    checkpoint: Option<Bytes>,
}

impl Shown {
    fn read(writer: &Writer) -> Result<Shown, PublishError> {
        let statements = writer.statements();
        if statements.is_empty() {
            return Ok(Shown {
                size: 0,
                checkpoint: None,
            });
        }
        let head = Head::decode(statements)?;
        Ok(Shown {
            size: head.frontier.size().saturating_add(1),
            checkpoint: head.checkpoint,
        })
    }
}

/// The good cosignatures of one log, one of each witness.
#[derive(Clone)]
struct Collected {
    volume: VolumeId,
    log: LogPoint,
    witnesses: Threshold,
    /// The line of each witness.
    lines: BTreeMap<PublicKey, String>,
    /// The keys of the log.
    log_keys: Threshold,
    /// The checkpoint with the lines of those that have signed it before.
    own: Note,
    /// What witnesses said that did not cosign.
    said: Vec<String>,
    /// The addresses of those that say they have cosigned another log.
    contradict: BTreeSet<String>,
}

impl Collected {
    /// Of the log with the version in it.
    fn of(next: &NextHead) -> Result<Collected, PublishError> {
        let volume = next.head.volume()?;
        let record: RootRecord = next.head.record.statement().read(volume)?;
        let mut log = next.head.frontier.clone();
        log.push(next.head.record.statement().bytes())?;
        Ok(Collected {
            volume,
            log: log.point(record.log.epoch),
            witnesses: next.roles.witnesses.clone(),
            lines: BTreeMap::new(),
            log_keys: next.roles.log_keys().clone(),
            own: Note::new(volume, log.point(record.log.epoch)),
            said: Vec::new(),
            contradict: BTreeSet::new(),
        })
    }

    fn is_enough(&self) -> bool {
        self.lines.len() >= usize::from(self.witnesses.needed())
    }

    /// Takes the good ones among these lines, and gives their number. A witness that fills its name with kilobytes would leave no
    /// room for others in the head.
    fn take(&mut self, lines: &[u8]) -> usize {
        let good = checkpoint::cosignatures(lines, self.volume, &self.log, &self.witnesses);
        let good = good.into_iter().filter(|c| c.name.len() <= MAX_NAME_BYTES);
        let mut count = 0;
        for cosignature in good {
            self.lines.insert(cosignature.witness, cosignature.line);
            count += 1;
        }
        count
    }

    /// Takes those of a note that a head has, and the lines of the log's own keys.
    fn take_note(&mut self, bytes: &[u8]) {
        self.take(bytes);
        if let Ok(note) = Note::decode(bytes) {
            self.keep_own(&note);
        }
    }

    /// Keeps the lines of the log's own keys.
    fn keep_own(&mut self, note: &Note) {
        if (note.volume, note.log) == (self.volume, self.log) {
            self.own.add(note.signed_by(self.log_keys.keys()).lines());
        }
    }

    /// Takes those of a file, which must be about this log.
    fn take_file(&mut self, path: &Path) -> Result<(), PublishError> {
        let bad = |why| PublishError::BadNote {
            path: path.to_owned(),
            why,
        };
        let bytes = read_file(path, MAX_SUBMISSION_BYTES)?;
        // With the proof before it, as `bulla witness sign` writes it, or the note alone, as other programs do.
        let note = Submission::decode(&bytes).map(|submission| submission.note);
        let note = note.or_else(|_| Note::decode(&bytes)).map_err(bad)?;
        if (note.volume, note.log) != (self.volume, self.log) {
            return Err(PublishError::OtherNote {
                path: path.to_owned(),
            });
        }
        self.keep_own(&note);
        if self.take(note.lines().as_bytes()) == 0 {
            let place = path.display();
            let why = "it has no cosignature of a witness of this volume";
            self.said.push(format!("{place}: {why}"));
        }
        Ok(())
    }

    fn answered(&mut self, answer: Answer) {
        let place = answer.place;
        if answer.contradicts {
            self.contradict.insert(place.clone());
        }
        match answer.lines {
            Ok(lines) if self.take(&lines) > 0 => {}
            Ok(_) => {
                let why = "its answer is no cosignature of a witness of this volume";
                self.said.push(format!("{place}: {why}"));
            }
            Err(why) => self.said.push(format!("{place}: {why}")),
        }
    }

    /// The note for the head: with the log's own signatures if there is room for all.
    fn checkpoint(&self, own: &str) -> Bytes {
        let text = checkpoint::text(self.volume, &self.log);
        let lines: String = self.lines.values().map(String::as_str).collect();
        let note = format!("{text}\n{own}{lines}");
        match note.len() <= MAX_CHECKPOINT_BYTES {
            true => note.into(),
            false => format!("{text}\n{lines}").into(),
        }
    }

    fn too_few(&self, version: u64) -> PublishError {
        let needed = usize::from(self.witnesses.needed());
        let (signed, waiting) = (self.witnesses.keys().iter())
            .partition(|key: &&PublicKey| self.lines.contains_key(*key));
        let tally = Tally {
            role: "witnesses",
            needed: self.witnesses.needed(),
            signed,
            waiting,
        };
        PublishError::NotCosigned {
            version,
            // Nothing proves what one of them says. With fewer of them than this, the others could still be enough.
            contradicted: self.contradict.len()
                > self.witnesses.keys().len().saturating_sub(needed),
            said: Said::new(Missing(vec![tally]), &self.said),
        }
    }
}
