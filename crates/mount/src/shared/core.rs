//! Calls of the log for a mount. A call that changes something is never begun again and never given up: its program may
//! stop waiting, the call goes on (`share` says what became of it, also after a restart).

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use bulla::shared::{SharedVolume, now};
use reader::{Fetch, Tree};
use share::client::{Answered, ClientError, NewFile, Phase, Stopped};
use share::files::{Answer, Call, File, Place, Refused, Stamped};
use share::outbox::Flight;
use tokio::runtime::Handle;
use trust::inode::Time;
use trust_shared::principal::{Device, FileId, Name};

use super::directory::OpenDirectory;
use super::failure::Failure;
use super::lock_room::LockRoom;
use super::own_names::OwnNames;
use super::spool::{Node, Nodes, Spools};
use crate::fuse::{Error, Notifier};
use share::writeback::lock;

/// How long the kernel may keep what it is told of an earlier state, which never changes.
const LONG: Duration = Duration::from_secs(24 * 3600);
/// How long a call that changes something may take that nobody waits for.
pub const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// An open file.
#[derive(Debug, Clone)]
pub struct OpenFile {
    /// The file.
    pub node: Arc<Node>,
    /// It was opened for writing.
    pub writes: bool,
}

/// Which state of a volume a mount shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// The newest one.
    Newest,
    /// The one after an entry of the log. It is read-only.
    After(u64),
}

/// A mounted shared volume: what all requests share.
pub struct Core {
    /// The volume, with the engine or as its guest.
    pub volume: SharedVolume,
    /// The state that programs see.
    pub shows: Shows,
    /// Files that the kernel knows.
    pub nodes: Nodes,
    /// Where local bytes lie.
    pub spools: Spools,
    /// How long a program waits.
    pub deadline: Duration,
    /// How old names and attributes may be.
    attr: Duration,
    /// When the newest question was sent to which the server has given an answer.
    asked: Mutex<Option<Instant>>,
    /// What the server said of its room, all units and free ones, and when it was asked.
    pub room: Mutex<Option<(Instant, (u64, u64))>>,
    /// Names that this mount has changed itself.
    pub own_names: OwnNames,
    /// Locks of programs.
    pub locks: LockRoom,
    /// Tells the kernel what is stale.
    pub notifier: OnceLock<Arc<Notifier>>,
    /// The mount is ending: nothing is written any more.
    is_ending: AtomicBool,
    /// Reads content.
    pub contents: Tree,
    begun: Instant,
    /// Numeric user and group of all files, as programs see them.
    pub owner: (u32, u32),
    /// This device's number.
    pub device: Device,
    /// Where commits run.
    pub runtime: Handle,
    files: Mutex<HashMap<u64, OpenFile>>,
    directories: Mutex<HashMap<u64, Arc<OpenDirectory>>>,
    next_handle: AtomicU64,
    /// Why this device writes no more, and since when.
    stopped: Mutex<Option<(Stopped, SystemTime)>>,
}

impl Core {
    /// Begins with the root directory, as it is after a prefix of the log.
    pub fn new(
        (volume, shows): (SharedVolume, Shows),
        root: File,
        device: Device,
        (spools, locks): (Spools, LockRoom),
        (deadline, attr): (Duration, Duration),
    ) -> Core {
        let owner = (
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        );
        let key = *volume.client().volume().as_bytes();
        Core {
            nodes: Nodes::new(key, root),
            contents: volume.contents(),
            volume,
            shows,
            spools,
            deadline,
            attr,
            asked: Mutex::default(),
            room: Mutex::default(),
            own_names: OwnNames::default(),
            locks,
            notifier: OnceLock::new(),
            is_ending: AtomicBool::new(false),
            begun: Instant::now(),
            owner,
            device,
            runtime: Handle::current(),
            files: Mutex::default(),
            directories: Mutex::default(),
            next_handle: AtomicU64::new(1),
            stopped: Mutex::default(),
        }
    }

    /// The time of a change that is made now.
    pub fn now() -> Time {
        now()
    }

    /// Time since the mount began, milliseconds.
    pub fn clock_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Until when a request may take that begins now.
    pub fn until(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// How content is read.
    pub fn how(&self) -> Fetch {
        Fetch::Until(self.until())
    }

    /// The node of a number, which the kernel must have been given.
    ///
    /// # Errors
    /// ESTALE.
    pub fn node(&self, number: u64) -> Result<Arc<Node>, Failure> {
        let node = self.nodes.get(number);
        node.ok_or(Failure::Plain(Error::StaleInode))
    }

    /// Why this device writes no more, and since when it is known.
    pub fn stopped(&self) -> Option<(Stopped, SystemTime)> {
        let Phase::Stopped(why) = self.volume.client().view().phase else {
            return None;
        };
        let mut stopped = lock(&self.stopped);
        let stopped = stopped.get_or_insert_with(|| {
            let conflict = why.to_string();
            tracing::error!(
                why = conflict,
                "the mount is read-only from now on: it shows what was verified before"
            );
            (why, SystemTime::now())
        });
        Some(stopped.clone())
    }

    /// Fails if programs may change nothing any more.
    ///
    /// # Errors
    /// EROFS.
    pub fn may_write(&self) -> Result<(), Failure> {
        match self.is_ending() || self.shows != Shows::Newest {
            true => Err(Error::ReadOnly.into()),
            false => self.may_commit(),
        }
    }

    /// Whether the mount is ending.
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// From now on programs change nothing any more.
    pub fn ends(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Fails if this device writes no more.
    ///
    /// # Errors
    /// EROFS.
    pub fn may_commit(&self) -> Result<(), Failure> {
        match self.stopped() {
            Some((why, _)) => Err(Failure::Stopped(why)),
            None => Ok(()),
        }
    }

    /// Asks what the newest state of the log says: a mark goes to the server. Once this device writes no more, what it has
    /// verified.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn ask(&self, call: Call) -> Result<(Answer, u64), Failure> {
        if self.shows != Shows::Newest || self.stopped().is_some() {
            return self.look(call).await;
        }
        let begin = Instant::now();
        let asked = self.volume.client().call(call.clone(), self.until());
        match self.here(asked).await {
            Err(ClientError::Stopped(_)) if self.stopped().is_some() => self.look(call).await,
            asked => {
                let answered = asked?;
                self.server_answered(begin);
                used(answered)
            }
        }
    }

    /// As [`Core::ask`], or what this device has verified, if that is new enough for names and attributes. Gives until when
    /// the answer is new enough.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn ask_for_name(&self, call: Call) -> (Result<(Answer, u64), Failure>, Instant) {
        // Before the answer: a later question of another request is of a later state.
        let until = self.fresh_until();
        match until > Instant::now() {
            true => (self.look(call).await, until),
            false => {
                let until = self.asked_now();
                (self.ask(call).await, until)
            }
        }
    }

    /// Until when what this device has verified is new enough for names and attributes.
    pub fn fresh_until(&self) -> Instant {
        let now = Instant::now();
        match (self.shows, self.stopped()) {
            (Shows::After(_), _) => now + LONG,
            // Nothing changes any more.
            (Shows::Newest, Some(_)) => now + self.attr,
            (Shows::Newest, None) => lock(&self.asked).map_or(now, |asked| asked + self.attr),
        }
    }

    /// Until when the answer to a question is new enough that is sent now.
    pub fn asked_now(&self) -> Instant {
        Instant::now() + self.attr
    }

    /// The server has answered a question or a change that was begun then: this device knows all that was in the log.
    fn server_answered(&self, begin: Instant) {
        let mut newest = lock(&self.asked);
        *newest = newest.map(|newest| newest.max(begin)).or(Some(begin));
    }

    /// What this device has verified says, without a mark.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn look(&self, call: Call) -> Result<(Answer, u64), Failure> {
        let call = self.about_what_is_shown(call);
        let looked = self.volume.client().look(call.clone(), self.until());
        let looked = self.here(looked).await?;
        // It rests on an entry that no device has attested: the read rule decides.
        if !looked.marked.entries().is_empty() && self.stopped().is_none() {
            let asked = self.volume.client().call(call, self.until());
            return used(self.here(asked).await?);
        }
        used(looked)
    }

    /// The same after a prefix of the log of this size, or in the earlier state that programs see.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn look_back(&self, size: u64, call: Call) -> Result<(Answer, u64), Failure> {
        match self.shows {
            Shows::Newest => self.look(at(size, call)).await,
            Shows::After(_) => self.look(call).await,
        }
    }

    /// The question about the state that programs see.
    fn about_what_is_shown(&self, call: Call) -> Call {
        match (self.shows, &call) {
            (Shows::After(entry), Call::Lookup { .. } | Call::List { .. }) => {
                at(entry.saturating_add(1), call)
            }
            _ => call,
        }
    }

    /// The result of a call, unless the owners have begun the log again: nobody answers in the old one any more.
    pub async fn here<T>(
        &self,
        call: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        tokio::select! {
            biased;
            called = call => called,
            () = self.volume.client().offering() => Err(ClientError::GoneOver),
        }
    }

    /// Makes a call that changes something. It goes on until its deadline, also if the program is killed. What was sent by
    /// then may still have effect.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn change(&self, call: Call) -> Result<(Answer, u64), Failure> {
        self.may_write()?;
        let begin = Instant::now();
        let (client, until) = (self.volume.client().clone(), self.until());
        let calling = tokio::spawn(async move { client.call(call, until).await });
        let called = calling.await;
        if let Ok(Ok(_)) = &called {
            self.server_answered(begin);
        }
        used(called.map_err(|_| Error::Io("a call has panicked".to_owned()))??)
    }

    /// The same for a commit, which waits as long as it takes. Blocks that it names travel with it.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn change_patiently(
        &self,
        call: impl Into<Stamped>,
        blocks: Flight,
    ) -> Result<(Answer, u64), Failure> {
        self.may_commit()?;
        let until = Instant::now() + FOR_EVER;
        let calling = self.volume.client().call_with(call, blocks, until);
        used(self.here(calling).await?)
    }

    /// Makes a new file. As [`Core::change`].
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn create(&self, file: NewFile) -> Result<(FileId, u64), Failure> {
        self.may_write()?;
        let begin = Instant::now();
        let (client, until) = (self.volume.client().clone(), self.until());
        let creating = tokio::spawn(async move { client.create(file, until).await });
        let created = creating.await;
        if let Ok(Ok(_)) = &created {
            self.server_answered(begin);
        }
        let created = created.map_err(|_| Error::Io("a call has panicked".to_owned()))??;
        done(used(created)?)
    }

    /// The same for a conflict copy, which waits as long as it takes.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn create_patiently(&self, file: NewFile) -> Result<(FileId, u64), Failure> {
        let until = Instant::now() + FOR_EVER;
        let creating = self.volume.client().create(file, until);
        done(used(self.here(creating).await?)?)
    }

    /// A handle that no file has.
    pub fn new_handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps an open file under a new handle.
    pub fn keep_open(&self, handle: u64, node: Arc<Node>, writes: bool) {
        self.nodes.hold(node.number());
        node.cached().opened();
        lock(&self.files).insert(handle, OpenFile { node, writes });
    }

    /// The open file of a handle.
    ///
    /// # Errors
    /// EBADF.
    pub fn opened(&self, handle: u64) -> Result<OpenFile, Failure> {
        let file = lock(&self.files).get(&handle).cloned();
        file.ok_or(Failure::Plain(Error::BadHandle))
    }

    /// Nothing uses a handle any more.
    pub fn close_file(&self, handle: u64) -> Option<OpenFile> {
        lock(&self.files).remove(&handle)
    }

    /// Keeps an open directory. Gives its handle.
    pub fn open_directory(&self, directory: OpenDirectory) -> u64 {
        let handle = self.new_handle();
        lock(&self.directories).insert(handle, Arc::new(directory));
        handle
    }

    /// The open directory of a handle.
    ///
    /// # Errors
    /// EBADF.
    pub fn opened_directory(&self, handle: u64) -> Result<Arc<OpenDirectory>, Failure> {
        let directory = lock(&self.directories).get(&handle).cloned();
        directory.ok_or(Failure::Plain(Error::BadHandle))
    }

    /// Nothing uses a directory's handle any more.
    pub fn close_directory(&self, handle: u64) {
        lock(&self.directories).remove(&handle);
    }
}

/// The question about the end of a prefix of the log of this size.
fn at(size: u64, call: Call) -> Call {
    let call = Box::new(call);
    Call::At { size, call }
}

/// Takes the answer out, unless it is that nobody speaks for what it rests on, or a refusal.
///
/// # Errors
/// [`Failure::Silent`], [`Failure::Refused`].
pub fn used(answered: Answered) -> Result<(Answer, u64), Failure> {
    match answered.answer {
        Answer::Silent { device, .. } => Err(Failure::Silent(device.to_string())),
        Answer::Refused(why) => Err(why.into()),
        answer => Ok((answer, answered.at)),
    }
}

/// The file that a call made or changed.
///
/// # Errors
/// EIO for an answer of another kind: a defect.
pub fn done((answer, at): (Answer, u64)) -> Result<(FileId, u64), Failure> {
    match answer {
        Answer::Done(file) | Answer::Replaced(file, _) => Ok((file, at)),
        _ => Err(defect()),
    }
}

/// The file that was asked for.
///
/// # Errors
/// EIO for an answer of another kind: a defect.
pub fn found((answer, at): (Answer, u64)) -> Result<(File, u64), Failure> {
    match answer {
        Answer::Found(file) => Ok((file, at)),
        _ => Err(defect()),
    }
}

/// An answer of another kind than the call's.
pub fn defect() -> Failure {
    Error::Io("a shared volume gave an answer of another kind".to_owned()).into()
}

/// The place of a name in a directory.
///
/// # Errors
/// EINVAL for a name that no file can have.
pub fn place(directory: FileId, name: &[u8]) -> Result<(Place, Name), Failure> {
    let name = match Name::new(name) {
        Ok(name) => name,
        Err(_) if name.len() > trust::inode::MAX_NAME_BYTES => {
            return Err(Error::NameTooLong.into());
        }
        Err(_) => return Err(Error::InvalidArgument.into()),
    };
    let place = Place {
        start: directory,
        path: vec![name.clone()],
    };
    Ok((place, name))
}

/// The place of a file whose number is known.
pub fn place_of(file: FileId) -> Place {
    Place {
        start: file,
        path: Vec::new(),
    }
}

/// Whether a failure of a look-up says that there is no such file: no such name, or no name leads to the number any more.
pub fn is_absent(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Refused(Refused::NotFound | Refused::Stale)
    )
}
