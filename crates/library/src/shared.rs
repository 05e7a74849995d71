//! A shared volume that is open: calls whose errors name a path, and what a program must know before it ends.
//!
//! | module | what lives there |
//! |---|---|
//! | here | opening, calls, closing |
//! | `standing` | when a program may ask |
//! | [`recovery`] | going over to the log that stands after a fork |
//! | `past` | the volume as it was, and its log |
//! | `writing` | changes of files by their paths |
//! | [`places`] | paths |

mod past;
pub mod places;
pub mod recovery;
mod standing;
mod writing;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use reader::{Fetch, Prefetcher, Spawner};
use share::client::{
    Answered, Client, ClientError, Connection, NewFile, OtherPlace, Phase, Sink, Stopped, Trouble,
};
use share::files::{Answer, Call, Changed, File, Listed, Over, Place, Refused, Replace};
use share::home::{Forgotten, Home};
use tokio::runtime::Handle;
use trust::device::DeviceKey;
use trust::inode::{Inode, Time};
use trust_shared::decision::Decision;
use trust_shared::principal::{FileId, Name, Principal};
use volume::VersionRef;

use crate::error::Error;
use crate::members::Membership;
use places::Address;
use recovery::Recovered;

/// How long a program that is done waits until its device has confirmed what it wrote.
const CONFIRM: Duration = Duration::from_secs(2);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(2);

/// How a shared volume is opened.
#[derive(Clone, Debug)]
pub struct SharedOptions {
    /// How long a step may take.
    pub deadline: Duration,
    /// Opens it also without its server, for who shows only what this device knows.
    pub alone: bool,
    /// May have content of what this device alone has, after a fork.
    pub other: Option<Arc<OtherPlace>>,
}

/// A shared volume and its client.
pub struct SharedVolume {
    home: Home,
    client: Client,
    /// Where blocks are fetched ahead.
    runtime: Handle,
    deadline: Duration,
    recovered: Recovered,
    /// Entries that this device did not remember before it was opened.
    forgotten: Forgotten,
    /// Policies of the home before it was opened.
    rules: usize,
    /// An answer rests on what a silent device wrote.
    is_marked: AtomicBool,
    /// Something was changed.
    has_written: AtomicBool,
}

/// Names of a directory.
pub struct Names {
    /// The names.
    pub names: Vec<Listed>,
    /// There may be more after this name, which need not exist. None: these are the last ones.
    pub next: Option<Name>,
}

/// What became of a call that may replace a file.
pub enum Made {
    /// It replaced nothing of another device.
    Alone(FileId),
    /// It replaced a file that another device had changed last.
    Over(FileId, Changed),
    /// It was refused: the name leads to something else than the caller has seen.
    Stale,
}

impl SharedVolume {
    /// Opens the volume of a home. If its owners have begun the log again after a fork, the device goes over
    /// ([`SharedVolume::recovered`]).
    ///
    /// # Errors
    /// [`Error`]: the server does not answer in time or refuses this device, or another program has the engine and does
    /// not answer.
    pub async fn open(home: Home, options: &SharedOptions) -> Result<SharedVolume, Error> {
        let rules = home.signed_policies()?.len();
        let forgotten = home.forgotten();
        let (until, other) = (Instant::now() + options.deadline, options.other.as_ref());
        let wait = async |client: &Client, until| match options.alone {
            true => {
                standing::heard(client, until).await;
                Ok(())
            }
            false => standing::reached(client, until).await,
        };
        let opening = recovery::open(&home, until, (options.deadline, other), wait);
        let (client, recovered) = opening.await?;
        let has_written = AtomicBool::new(recovered.given.is_some());
        Ok(SharedVolume {
            home,
            client,
            runtime: Handle::current(),
            deadline: options.deadline,
            recovered,
            forgotten,
            rules,
            is_marked: AtomicBool::new(false),
            has_written,
        })
    }

    /// Ends the work: other devices can use what this one has written.
    ///
    /// # Errors
    /// [`Error::Client`] if what was written is not durable.
    pub async fn close(&self) -> Result<(), Error> {
        if self.has_written.load(Ordering::Relaxed) {
            self.confirm().await;
        }
        self.close_until(self.until()).await
    }

    /// Ends the work and waits for nobody, after the server has not answered in time.
    ///
    /// # Errors
    /// As [`SharedVolume::close`].
    pub async fn close_until(&self, until: Instant) -> Result<(), Error> {
        Ok(self.client.clone().close(until).await?)
    }

    /// Waits until this device has confirmed its last entry, and the server has that, so that nobody must wait for this
    /// device later. If it takes too long, the next program does it.
    async fn confirm(&self) {
        let own = DeviceKey::from(self.home.device());
        let until = Instant::now() + CONFIRM.min(self.deadline);
        while Instant::now() < until {
            let Ok(status) = self.client.status(until).await else {
                return;
            };
            if matches!(status.phase, Phase::Stopped(_)) {
                return;
            }
            let row = status.devices.iter().find(|row| row.device == own);
            if row.is_none_or(|row| row.attested > row.last_at) {
                // The answer to this comes after the server has taken what was sent before.
                let _ = self.client.call(Call::Members, until).await;
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What became of this device while it was opened.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// Entries of this device that this program met first, if there are any: the power was cut, or somebody else writes
    /// with a copy of this device.
    pub fn strange_entries(&self) -> Option<Forgotten> {
        let now = self.home.forgotten();
        (now != self.forgotten && now.entries > 0).then_some(now)
    }

    /// Whether an answer rests on what a silent device wrote.
    pub fn is_marked(&self) -> bool {
        self.is_marked.load(Ordering::Relaxed)
    }

    /// Something was changed by calls of the client itself: closing waits until this device has confirmed it.
    pub fn has_changed(&self) {
        self.has_written.store(true, Ordering::Relaxed);
    }

    /// Whether something was changed.
    pub fn has_written(&self) -> bool {
        self.has_written.load(Ordering::Relaxed)
    }

    /// Why this device writes no more, if it has proof that the server lies.
    pub fn convicted(&self) -> Option<Stopped> {
        match self.client.view().phase {
            Phase::Stopped(why @ Stopped::Convicted { .. }) => Some(why),
            _ => None,
        }
    }

    /// The home.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where content is put.
    pub fn sink(&self) -> Sink {
        self.client.sink(self.deadline)
    }

    /// How long a step may take.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Until when a step may take that begins now.
    pub fn until(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// How blocks are read.
    pub fn how(&self) -> Fetch {
        Fetch::Until(self.until())
    }

    /// The place at a path from the root directory.
    ///
    /// # Errors
    /// [`Error::BadPath`].
    pub fn place(&self, path: &[u8]) -> Result<Place, Error> {
        places::place(self.client.root(), path)
    }

    /// Makes a call. What was verified before the server was convicted stays readable.
    ///
    /// # Errors
    /// [`Error::Silent`], [`Error::Undecided`], and those of the client.
    pub async fn call(&self, call: Call) -> Result<Answer, Error> {
        let until = self.until();
        let only_reads = call.only_reads();
        let answered = match self.convicted() {
            Some(_) if only_reads => self.client.look(call, until).await?,
            _ => self.here(self.client.call(call, until), only_reads).await?,
        };
        if only_reads {
            self.is_here()?;
        }
        self.used(answered).await
    }

    /// Notes what an answer rests on.
    async fn used(&self, answered: Answered) -> Result<Answer, Error> {
        if !answered.marked.entries().is_empty() {
            self.is_marked.store(true, Ordering::Relaxed);
        }
        match answered.answer {
            Answer::Silent { device, .. } => Err(self.silent(device).await),
            answer => Ok(answer),
        }
    }

    /// The error for an answer that rests on what a silent device wrote.
    async fn silent(&self, device: DeviceKey) -> Error {
        let roll = self.client.call(Call::Members, self.until()).await;
        let found = match roll.map(|answered| answered.answer) {
            Ok(Answer::Members(roll)) => Membership::of(roll).with_key(&device),
            _ => None,
        };
        let (device, whose) = match found {
            Some(member) => (member.device.0.to_string(), member.shown()),
            None => (device.to_string(), format!("the device {device}")),
        };
        Error::Silent {
            volume: self.home.name().to_owned(),
            device,
            whose,
        }
    }

    /// Runs a future as long as the log goes on.
    ///
    /// # Errors
    /// [`ClientError::GoneOver`] once the owners have begun the log again; those of the future.
    pub async fn unless_offered<T, E: From<Error>>(
        &self,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            biased;
            outcome = future => outcome,
            () = self.client.offering() => Err(Error::from(ClientError::GoneOver).into()),
        }
    }

    /// Makes a call, which nobody answers any more once the owners have begun the log again.
    async fn here<T>(
        &self,
        call: impl Future<Output = Result<T, ClientError>>,
        only_reads: bool,
    ) -> Result<T, Error> {
        let called = self.unless_offered(async { Ok::<T, Error>(call.await?) });
        called.await.map_err(|error| match error {
            // It is not made again: it may have had effect, and come back.
            Error::Client(why) if !only_reads && is_other_epoch(&why) => Error::Undecided {
                volume: self.home.name().to_owned(),
            },
            error => error,
        })
    }

    /// Fails if this device has gone over to another log since the volume was opened: what was read before and what is
    /// read now do not belong together.
    fn is_here(&self) -> Result<(), Error> {
        // What the home has cannot be read: that does not say that anything has changed.
        let signed = self.home.signed_policies();
        if signed.is_ok_and(|signed| signed.len() == self.rules) {
            return Ok(());
        }
        let begun = self.client.policies().newest_epoch().number;
        match self.home.policies() {
            Ok(policies) if policies.newest_epoch().number != begun => {
                Err(ClientError::GoneOver.into())
            }
            _ => Ok(()),
        }
    }

    /// Whether the owners have begun the log again since the volume was opened.
    pub fn has_moved(&self) -> bool {
        self.client.offered().is_some() || self.is_here().is_err()
    }

    /// Makes a call that changes something. `about` names what it is about, for errors.
    ///
    /// # Errors
    /// [`Error::Refused`] besides those of [`SharedVolume::call`].
    pub async fn change(&self, call: Call, about: &dyn Fn() -> String) -> Result<(), Error> {
        self.has_written.store(true, Ordering::Relaxed);
        match self.call(call).await? {
            Answer::Done(_) | Answer::Replaced(..) | Answer::Settled => Ok(()),
            Answer::Refused(why) => Err(Error::refused(about(), why)),
            _ => Err(Error::Defect),
        }
    }

    /// The file at a place, if there is one.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn look(&self, place: &Place, follow: bool) -> Result<Option<File>, Error> {
        self.look_at(None, place, follow).await
    }

    /// The file at a place.
    ///
    /// # Errors
    /// [`Error::NotFound`] besides.
    pub async fn find(&self, place: &Place, follow: bool) -> Result<File, Error> {
        self.find_at(None, place, follow).await
    }

    /// Makes a file under a free name. Returns its number.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn create(
        &self,
        at: &Address,
        inode: Inode,
        owner: Option<Principal>,
    ) -> Result<FileId, Error> {
        match self.make(at, inode, owner, Replace::Nothing).await? {
            Made::Alone(file) | Made::Over(file, _) => Ok(file),
            Made::Stale => Err(Error::refused(at.shown(), Refused::Stale)),
        }
    }

    /// Makes a file.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn make(
        &self,
        at: &Address,
        inode: Inode,
        owner: Option<Principal>,
        replace: Replace,
    ) -> Result<Made, Error> {
        let is_expected = matches!(replace, Replace::Seen(_));
        self.has_written.store(true, Ordering::Relaxed);
        let file = NewFile {
            place: at.name.clone(),
            inode,
            owner,
            replace,
        };
        let creating = self.client.create(file, self.until());
        let answered = self.here(creating, false).await?;
        made(self.used(answered).await?, at, is_expected)
    }

    /// Makes another call that may replace the file at an address.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn replace(&self, call: Call, at: &Address) -> Result<Made, Error> {
        let is_expected = matches!(
            call,
            Call::Rename {
                over: Over::Seen(_),
                ..
            }
        );
        self.has_written.store(true, Ordering::Relaxed);
        made(self.call(call).await?, at, is_expected)
    }

    /// Makes a decision about members.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn decide(
        &self,
        decision: Decision,
        about: &dyn Fn() -> String,
    ) -> Result<(), Error> {
        self.change(Call::Decide(decision), about).await
    }

    /// The number of the entry after which the volume was as `state` says: that entry's own number, or the name of a
    /// snapshot.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`]; as [`SharedVolume::change`].
    pub async fn entry(&self, state: &VersionRef) -> Result<u64, Error> {
        let name = match state {
            VersionRef::Number(entry) => return Ok(*entry),
            VersionRef::Name(name) => name.to_string(),
        };
        let entry = self.members().await?.snapshot(&name);
        entry.ok_or(Error::NoSnapshot { name })
    }

    /// The members now.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn members(&self) -> Result<Membership, Error> {
        members(self.call(Call::Members).await?)
    }

    /// The members as far as this device has seen the log.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn known_members(&self) -> Result<Membership, Error> {
        let look = self.client.look(Call::Members, self.until());
        members(look.await?.answer)
    }

    /// Reads the content of files.
    pub fn contents(&self) -> reader::Tree {
        let spawner = Spawner::on(self.runtime.clone());
        let blocks = self.client.blocks().clone();
        reader::Tree::of_contents(Prefetcher::new(blocks, spawner))
    }
}

/// Whether nobody answers because the owners have begun the log again.
pub fn is_other_epoch(error: &ClientError) -> bool {
    match error {
        ClientError::GoneOver => true,
        ClientError::Deadline {
            connection: Connection::Offline(lost),
        } => matches!(lost.trouble, Trouble::Successor | Trouble::OtherEpoch),
        _ => false,
    }
}

fn made(answer: Answer, at: &Address, is_expected: bool) -> Result<Made, Error> {
    match answer {
        Answer::Done(file) => Ok(Made::Alone(file)),
        Answer::Replaced(file, changed) => Ok(Made::Over(file, changed)),
        Answer::Refused(Refused::Stale) if is_expected => Ok(Made::Stale),
        Answer::Refused(why) => Err(Error::refused(at.shown(), why)),
        _ => Err(Error::Defect),
    }
}

fn members(answer: Answer) -> Result<Membership, Error> {
    match answer {
        Answer::Members(roll) => Ok(Membership::of(roll)),
        Answer::Refused(why) => Err(Error::refused("members".to_owned(), why)),
        _ => Err(Error::Defect),
    }
}

/// The time of a change that is made now.
pub fn now() -> Time {
    SystemTime::now().into()
}
