//! A shared volume that a command has opened: the runtime, the client, and calls whose failures name a path.

use std::ffi::OsStr;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ::share::client::{Answered, Client, ClientError, NewFile, OtherPlace, Phase, Sink, Stopped};
use ::share::files::{
    Answer, Call, Changed, File, FileRef, Listed, MAX_LISTED, MAX_LISTED_INODES, Over, Place,
    Refused, Replace,
};
use ::share::home::{Forgotten, Home};
use reader::{Fetch, Prefetcher, Spawner, Tree};
use tokio::runtime::Runtime;
use trust::device::DeviceKey;
use trust::inode::{Inode, Mtime};
use trust_shared::decision::Decision;
use trust_shared::principal::{FileId, Name, Principal};

use super::members::Membership;
use super::places::{self, Address};
use super::recovery::{self, Recovered};
use super::standing::{heard, reached};
use crate::args::Waiting;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::Output;
use crate::session;

/// How long a command that is done waits until its device has confirmed what it wrote.
const CONFIRM: Duration = Duration::from_secs(2);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(2);
/// How long a command that the server has not answered in time stays for other programs that use its engine: nobody
/// answers them either.
const GIVES_UP: Duration = Duration::from_secs(1);

/// A shared volume and its client.
pub struct SharedVolume {
    runtime: Runtime,
    home: Home,
    client: Client,
    deadline: Duration,
    recovered: Recovered,
    /// Entries that this device did not remember before it was opened.
    forgotten: Forgotten,
    /// Policies of the home before it was opened.
    pub(super) rules: usize,
    /// Size of the prefix of the log whose files are read. None: the newest.
    pub(super) past: Option<u64>,
    /// An answer rests on what a silent device wrote.
    is_marked: AtomicBool,
    /// Something was changed.
    has_written: AtomicBool,
}

/// Names of a directory.
pub struct Page {
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
    /// Opens the volume with this name or id.
    pub fn open(config: &Config, name: &str, waiting: &Waiting) -> Outcome<SharedVolume> {
        SharedVolume::start(config, super::home(config, name)?, waiting.deadline)
    }

    /// Opens the volume for a command that shows what this device knows, also without its server.
    pub fn open_alone(config: &Config, name: &str, waiting: &Waiting) -> Outcome<SharedVolume> {
        SharedVolume::start_alone(config, super::home(config, name)?, waiting.deadline)
    }

    /// As [`SharedVolume::open_alone`], with the home.
    pub fn start_alone(
        config: &Config,
        home: Home,
        deadline: Option<Duration>,
    ) -> Outcome<SharedVolume> {
        SharedVolume::begin(config, home, deadline, None, async |client, until| {
            heard(client, until).await;
            Ok(())
        })
    }

    /// Opens the volume of a home.
    pub fn start(config: &Config, home: Home, deadline: Option<Duration>) -> Outcome<SharedVolume> {
        SharedVolume::begin(config, home, deadline, None, reached)
    }

    /// The same. `other` may have content of what this device alone has.
    pub fn start_with(
        config: &Config,
        home: Home,
        deadline: Option<Duration>,
        other: Option<&Arc<OtherPlace>>,
    ) -> Outcome<SharedVolume> {
        SharedVolume::begin(config, home, deadline, other, reached)
    }

    fn begin(
        config: &Config,
        home: Home,
        deadline: Option<Duration>,
        other: Option<&Arc<OtherPlace>>,
        wait: impl AsyncFn(&Client, Instant) -> Outcome<()>,
    ) -> Outcome<SharedVolume> {
        let deadline = match deadline {
            Some(deadline) => deadline,
            None => config.duration("deadline")?,
        };
        let rules = home.signed_policies()?.len();
        let forgotten = home.forgotten();
        let runtime = session::runtime()?;
        let until = Instant::now() + deadline;
        let opening = recovery::open(&home, until, (deadline, other), wait);
        let opened = session::run(&runtime, opening);
        let (client, recovered) = opened.map_err(|failure| unanswered(failure, false))?;
        let has_written = AtomicBool::new(recovered.given.is_some());
        Ok(SharedVolume {
            runtime,
            home,
            client,
            deadline,
            recovered,
            forgotten,
            rules,
            past: None,
            is_marked: AtomicBool::new(false),
            has_written,
        })
    }

    /// Runs a future until it ends or Ctrl-C comes.
    pub fn run<T>(&self, future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        session::run(&self.runtime, future)
    }

    /// Ends the work: other devices can use what this one has written.
    pub fn close<T>(self, outcome: Outcome<T>, output: &mut Output) -> Outcome<T> {
        if self.is_marked.load(Ordering::Relaxed) {
            output.unattested();
        }
        if let Some(why) = self.convicted() {
            output.ends_with(ClientError::from(why).into());
        }
        let has_written = self.has_written.load(Ordering::Relaxed);
        let outcome = outcome.map_err(|failure| unanswered(failure, has_written));
        let closed = match &outcome {
            Err(failure) if is_unanswered(failure) => self.end_soon(output),
            _ => self.end(output),
        };
        let value = outcome?;
        closed?;
        Ok(value)
    }

    /// Ends the work, and nothing of it counts for the result.
    pub(super) fn end(&self, output: &mut Output) -> Outcome<()> {
        self.recovered.tell(output);
        self.tell_forgotten(output);
        let closing = async {
            if self.has_written.load(Ordering::Relaxed) {
                self.confirm().await;
            }
            self.client.clone().close(self.until()).await
        };
        Ok(self.runtime.block_on(closing)?)
    }

    /// Warns of entries of this device that this command met first.
    fn tell_forgotten(&self, output: &Output) {
        let now = self.home.forgotten();
        if now == self.forgotten || now.entries == 0 {
            return;
        }
        let (name, last) = (self.home.name(), now.last_at);
        let entries = recovery::entries(now.entries);
        output.warn(&format!(
            "the log has {entries} of this device that it does not remember, the last at {last}. Unless the power was cut \
             here, or a backup of this device was put back, somebody else writes with a copy of it: look with `bulla log \
             {name}`, and remove this device from another one (`bulla share device remove {name} NUMBER`)"
        ));
    }

    /// Ends the work after the server has not answered in time: the command ends then, and waits for nobody.
    fn end_soon(&self, output: &mut Output) -> Outcome<()> {
        self.recovered.tell(output);
        let until = Instant::now() + GIVES_UP.min(self.deadline);
        Ok(self.runtime.block_on(self.client.clone().close(until))?)
    }

    /// Waits until this device has confirmed its last entry, and the server has that, so that nobody must wait for this
    /// device later. If it takes too long, the next command does it.
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

    /// Until when a step may take that begins now.
    pub fn until(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// How blocks are read.
    pub fn how(&self) -> Fetch {
        Fetch::Until(self.until())
    }

    /// The place at a path from the root directory.
    pub fn place(&self, path: &OsStr) -> Outcome<Place> {
        places::place(self.client.root(), path)
    }

    /// Why this device writes no more, if it has proof that the server lies.
    fn convicted(&self) -> Option<Stopped> {
        match self.client.view().phase {
            Phase::Stopped(why @ Stopped::Convicted { .. }) => Some(why),
            _ => None,
        }
    }

    /// Makes a call. What was verified before the server was convicted stays readable.
    pub(super) async fn call(&self, call: Call) -> Outcome<Answer> {
        let (call, until) = (self.in_time(call), self.until());
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
    async fn used(&self, answered: Answered) -> Outcome<Answer> {
        if !answered.marked.entries().is_empty() {
            self.is_marked.store(true, Ordering::Relaxed);
        }
        match answered.answer {
            Answer::Silent { device, .. } => Err(self.silent(device).await),
            answer => Ok(answer),
        }
    }

    /// The failure for an answer that rests on what a silent device wrote.
    async fn silent(&self, device: DeviceKey) -> Failure {
        let roll = self.client.call(Call::Members, self.until()).await;
        let found = match roll.map(|answered| answered.answer) {
            Ok(Answer::Members(roll)) => Membership::of(roll).with_key(&device),
            _ => None,
        };
        let (device, whose) = match found {
            Some(member) => {
                let number = member.device.0.to_string();
                (number, member.shown())
            }
            None => (device.to_string(), format!("the device {device}")),
        };
        let name = self.home.name();
        let error = format!("the server or {whose} is silent, and what it wrote last is not used");
        let hint = format!(
            "the device may be off, or the server hides what it says: try again when it is on. If it is lost, an \
             administrator accepts what it wrote: `bulla share accept {name} {device}`"
        );
        Failure::new(Kind::Unattested, error).with_hint(hint)
    }

    /// Makes a call that changes something. `about` names what it is about, for failures.
    pub async fn change(&self, call: Call, about: &dyn Fn() -> String) -> Outcome<()> {
        self.has_written.store(true, Ordering::Relaxed);
        match self.call(call).await? {
            Answer::Done(_) | Answer::Replaced(..) | Answer::Settled => Ok(()),
            Answer::Refused(why) => Err(refused(&why, &about())),
            _ => Err(defect()),
        }
    }

    /// The file at a place, if there is one.
    pub async fn look(&self, place: &Place, follow: bool) -> Outcome<Option<File>> {
        let call = Call::Lookup {
            place: place.clone(),
            follow,
        };
        match self.call(call).await? {
            Answer::Found(file) => Ok(Some(file)),
            Answer::Refused(Refused::NotFound) => Ok(None),
            Answer::Refused(why) => Err(refused(&why, &places::shown(place))),
            _ => Err(defect()),
        }
    }

    /// The file at a place.
    pub async fn find(&self, place: &Place, follow: bool) -> Outcome<File> {
        let found = self.look(place, follow).await?;
        found.ok_or_else(|| {
            let error = format!("{}: not in the volume", places::shown(place));
            Failure::new(Kind::NotFound, error)
        })
    }

    /// A page of a directory's names, those after `after`.
    pub async fn list(&self, place: &Place, after: Option<Name>, inodes: bool) -> Outcome<Page> {
        let directory = FileRef::Place(place.clone());
        self.page(directory, place, after, inodes).await
    }

    /// A page of the names of this directory, those after `after`, whatever its own names lead to. `about` names it, for
    /// failures.
    pub async fn names_in(
        &self,
        directory: FileId,
        about: &Place,
        after: Option<Name>,
        inodes: bool,
    ) -> Outcome<Page> {
        let directory = FileRef::File(directory);
        self.page(directory, about, after, inodes).await
    }

    async fn page(
        &self,
        directory: FileRef,
        about: &Place,
        after: Option<Name>,
        inodes: bool,
    ) -> Outcome<Page> {
        let call = Call::List {
            directory,
            after,
            most: match inodes {
                true => MAX_LISTED_INODES,
                false => MAX_LISTED,
            },
            inodes,
        };
        match self.call(call).await? {
            Answer::Listed { names, next, .. } => Ok(Page { names, next }),
            Answer::Refused(why) => Err(refused(&why, &places::shown(about))),
            _ => Err(defect()),
        }
    }

    /// Makes a file under a free name. Returns its number.
    pub async fn create(
        &self,
        at: &Address,
        inode: Inode,
        owner: Option<Principal>,
    ) -> Outcome<FileId> {
        match self.make(at, inode, owner, Replace::Nothing).await? {
            Made::Alone(file) | Made::Over(file, _) => Ok(file),
            Made::Stale => Err(refused(&Refused::Stale, &at.shown())),
        }
    }

    /// Makes a file.
    pub async fn make(
        &self,
        at: &Address,
        inode: Inode,
        owner: Option<Principal>,
        replace: Replace,
    ) -> Outcome<Made> {
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
    pub async fn replace(&self, call: Call, at: &Address) -> Outcome<Made> {
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
    pub async fn decide(&self, decision: Decision, about: &dyn Fn() -> String) -> Outcome<()> {
        self.change(Call::Decide(decision), about).await
    }

    /// The members now.
    pub async fn members(&self) -> Outcome<Membership> {
        members(self.call(Call::Members).await?)
    }

    /// The members as far as this device has seen the log.
    pub async fn known_members(&self) -> Outcome<Membership> {
        let look = self.client.look(Call::Members, self.until());
        members(look.await?.answer)
    }

    /// Reads the content of files.
    pub fn contents(&self) -> Tree {
        let spawner = Spawner::on(self.runtime.handle().clone());
        let blocks = self.client.blocks().clone();
        Tree::of_contents(Prefetcher::new(blocks, spawner))
    }
}

/// Whether the server has not answered in time.
fn is_unanswered(failure: &Failure) -> bool {
    matches!(
        failure.kind,
        Kind::Unavailable | Kind::NoServer | Kind::NoAnswer
    )
}

/// What to do when the server has not answered in time. A shared volume has one server.
fn unanswered(failure: Failure, has_written: bool) -> Failure {
    let kind = match failure.kind {
        Kind::Unavailable | Kind::NoServer if has_written => Kind::NoServer,
        Kind::Unavailable | Kind::NoServer => Kind::NoAnswer,
        kind => kind,
    };
    Failure { kind, ..failure }
}

fn made(answer: Answer, at: &Address, is_expected: bool) -> Outcome<Made> {
    match answer {
        Answer::Done(file) => Ok(Made::Alone(file)),
        Answer::Replaced(file, changed) => Ok(Made::Over(file, changed)),
        Answer::Refused(Refused::Stale) if is_expected => Ok(Made::Stale),
        Answer::Refused(why) => Err(refused(&why, &at.shown())),
        _ => Err(defect()),
    }
}

fn members(answer: Answer) -> Outcome<Membership> {
    match answer {
        Answer::Members(roll) => Ok(Membership::of(roll)),
        Answer::Refused(why) => Err(refused(&why, "members")),
        _ => Err(defect()),
    }
}

/// The time of a change that is made now.
pub fn now() -> Mtime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    Mtime {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: since.subsec_nanos(),
    }
}

/// The failure for a call that had no effect on what `about` names.
pub fn refused(why: &Refused, about: &str) -> Failure {
    let kind = match why {
        Refused::NotFound => Kind::NotFound,
        Refused::NotPermitted => Kind::NoPermission,
        Refused::Exists => Kind::Exists,
        Refused::NotEmpty
        | Refused::NotADirectory
        | Refused::IsADirectory
        | Refused::NotRegular
        | Refused::BelowItself
        | Refused::Loop
        | Refused::Needed => Kind::Misfit,
        Refused::Stale => Kind::Overtaken,
        Refused::Locked | Refused::NotLocked => Kind::FileLocked,
        Refused::TooLarge | Refused::TooMany | Refused::Full => Kind::TooMuch,
        Refused::NeedsPath => Kind::Defect,
        Refused::Beyond | Refused::Forgotten(_) => Kind::NoEntry,
        Refused::Damaged(_) => Kind::Malformed,
        Refused::Unsupported(_) => Kind::Newer,
    };
    let failure = Failure::new(kind, format!("{about}: {why}"));
    match why {
        Refused::Needed => failure.with_hint(
            "make another user an administrator first: `bulla share grant VOLUME GROUP USER admin`",
        ),
        _ => failure,
    }
}

/// The client answers another question than it was asked.
pub fn defect() -> Failure {
    Failure::new(
        Kind::Defect,
        "a shared volume gave an answer of another kind",
    )
}
