//! What reading commands share: the runtime, named sources, opening the volume, and signals.

use std::future::Future;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::share::home::Home;
use reader::{ReadError, Reads};
use store::Replica;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use trust::judge::Freshness;
use trust::statement::VolumeId;
use volume::{VersionRef, Volume, VolumeError, VolumeOptions};
use wire::http::Tls;
use wire::location::{Location, Source};

use crate::args::Reading;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::Output;
use crate::units;

/// The runtime and the settings of a command that reads a SOURCE.
#[derive(Debug)]
pub struct Session {
    runtime: Runtime,
    state_dir: PathBuf,
    deadline: Duration,
    tls: Tls,
    freshness: Freshness,
    policy_pin: Option<[u8; 32]>,
}

impl Session {
    /// Starts the runtime.
    pub fn start(config: &Config, reading: &Reading) -> Outcome<Session> {
        let wrong = |why| Failure::new(Kind::Config, why);
        let named = config.source(&reading.source);
        let of_name = match named {
            Some(named) => (
                named.freshness().map_err(wrong)?,
                named.policy().map_err(wrong)?,
            ),
            None => (None, None),
        };
        Ok(Session {
            runtime: runtime()?,
            state_dir: config.path("state-dir").unwrap_or_default(),
            deadline: match reading.deadline {
                Some(deadline) => deadline,
                None => config.duration("deadline")?,
            },
            tls: match &reading.ca {
                _ if reading.tls_unverified => Tls::Unverified,
                Some(file) => Tls::Authority(file.clone()),
                None => config.tls(),
            },
            freshness: match reading.freshness.or(of_name.0) {
                Some(freshness) => freshness,
                None => units::parse_freshness(config.text("freshness")).map_err(wrong)?,
            },
            policy_pin: reading.policy.or(of_name.1),
        })
    }

    /// Opens the volume that the arguments name. If it has expired or no location answers, prints a
    /// warning and marks the result record.
    pub fn open(
        &self,
        config: &Config,
        reading: &Reading,
        output: &mut Output,
    ) -> Outcome<Arc<Volume>> {
        self.open_toward(config, reading, &[], None, output)
    }

    /// Like [`Session::open`], for a command that reads `path` next, and below it what `reads` says.
    pub fn open_toward(
        &self,
        config: &Config,
        reading: &Reading,
        path: &[u8],
        reads: Option<Reads>,
        output: &mut Output,
    ) -> Outcome<Arc<Volume>> {
        let source = self.source(config, &reading.source)?;
        let mirrors = mirrors(config, reading)?;
        let volume = VolumeOptions {
            state_directory: self.state_dir.clone(),
            cache_bytes: reading.caching.memory_bytes(config)?,
            disk_cache: reading.caching.open(config)?,
            deadline: self.deadline,
            freshness: self.freshness,
            policy_pin: self.policy_pin,
            toward: (!path.is_empty()).then(|| path.to_vec()),
            reads,
            ..VolumeOptions::default()
        };
        let options = bulla::Options {
            mirrors,
            tls: self.tls.clone(),
            volume,
        };
        let volume = self.run(async { Ok(bulla::open_published(&source, &options).await?) })?;
        if volume.is_stale() {
            let ended = units::time(volume.snapshot().fresh_until());
            output.stale(&ended);
        }
        if volume.is_offline() {
            output.offline(volume.snapshot().record().version);
        }
        Ok(volume)
    }

    /// Like [`Session::open_toward`], at a version of the volume's log if `at` names one. It must be proved to be in the
    /// log of the newest version, which is verified as always.
    pub fn open_at(
        &self,
        config: &Config,
        reading: &Reading,
        (at, path): (Option<&VersionRef>, &[u8]),
        reads: Option<Reads>,
        output: &mut Output,
    ) -> Outcome<Arc<Volume>> {
        let Some(which) = at else {
            return self.open_toward(config, reading, path, reads, output);
        };
        if matches!(self.freshness, Freshness::Pinned { .. }) {
            let error = "--at and --freshness pinned=VERSION:RECORD both choose a version";
            let hint = "give one of them: --at needs no record, because the log proves which record the version has";
            return Err(Failure::new(Kind::Usage, error).with_hint(hint));
        }
        let volume = self.open_toward(config, reading, path, reads, output)?;
        let past = self.kept(&volume, which, volume.at(which))?;
        let newest = volume.snapshot().record().version;
        output.history(past.snapshot().record(), newest);
        Ok(past)
    }

    /// What `opening` gives of a version. If no location has its record or its root any more, it does not exist (10).
    pub fn kept<T>(
        &self,
        volume: &Volume,
        which: &VersionRef,
        opening: impl Future<Output = Result<Option<T>, VolumeError>>,
    ) -> Outcome<T> {
        match self.run(async { Ok(opening.await) })? {
            Ok(Some(opened)) => Ok(opened),
            Ok(None) => Err(self.no_version(volume, which, None)),
            Err(VolumeError::Read(ReadError::Unavailable { denied, cause, .. }))
                if !denied.is_empty() =>
            {
                Err(self.no_version(volume, which, Some(cause)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The failure for a version that no location has (any more). The hint tells which ones they have.
    fn no_version(&self, volume: &Volume, which: &VersionRef, cause: Option<String>) -> Failure {
        let newest = volume.snapshot().record().version;
        let error = match which {
            VersionRef::Name(name) if cause.is_none() => {
                format!("no version has the name `{name}`")
            }
            VersionRef::Number(number) if *number > newest || *number == 0 => {
                format!("there is no version {number}: the newest is version {newest}")
            }
            which => format!("no location keeps version {which} any more"),
        };
        let mut failure = Failure::new(Kind::NoVersion, error);
        if let Some(cause) = cause {
            failure.push_cause(cause);
        }
        let kept = self.run(async { Ok(volume.readable_versions().await) });
        match kept {
            Ok(kept) if !kept.is_empty() => failure.with_hint(format!(
                "these versions can be read: {}; another LOCATION may keep more (`bulla pull` with --keep keeps versions)",
                numbers(&kept)
            )),
            _ => failure,
        }
    }

    /// The volume and the locations that the arguments name. Locations that cannot be opened are logged
    /// and left out; if none can be opened, that is an error.
    pub fn places(
        &self,
        config: &Config,
        reading: &Reading,
    ) -> Outcome<(VolumeId, Vec<Arc<dyn Replica>>)> {
        let source = self.source(config, &reading.source)?;
        let mut locations = vec![source.location];
        locations.extend(mirrors(config, reading)?);
        let (mut places, mut failure) = (Vec::new(), None);
        // Opening a location may start a task.
        let _runtime = self.runtime.enter();
        for location in locations {
            match location.open_with(source.volume, &self.tls) {
                Ok(place) => places.push(place),
                Err(error) => {
                    tracing::warn!(replica = %location, %error, "cannot open this location");
                    failure.get_or_insert(error);
                }
            }
        }
        match failure {
            Some(error) if places.is_empty() => Err(error.into()),
            _ => Ok((source.volume, places)),
        }
    }

    /// The hash of the policy that the volume's policies must contain.
    pub fn policy_pin(&self) -> Option<[u8; 32]> {
        self.policy_pin
    }

    /// Time limit of each read.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Runs a future until it ends or Ctrl-C comes.
    pub fn run<T>(&self, future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        run(&self.runtime, future)
    }

    /// Runs a future that handles signals itself.
    pub fn serve<T>(&self, future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        self.runtime.block_on(future)
    }

    /// Parses a SOURCE argument, which may be a name from the configuration.
    fn source(&self, config: &Config, text: &str) -> Outcome<Source> {
        let named = config.source(text).map(|named| named.source.as_str());
        let text = named.unwrap_or(text);
        if text.contains('@') {
            let mut source = Source::from_str(text)?;
            source.location = absolute(source.location)?;
            return Ok(source);
        }
        if Home::find(&self.state_dir, text)?.is_some() {
            let error =
                format!("`{text}` is a shared volume, and this command reads published ones");
            let hint = "`bulla ls`, `cat`, `stat`, `extract`, `verify`, `log` and `diff` read shared volumes, `put` writes them, and `share export` makes a published volume of one";
            return Err(Failure::new(Kind::BadSource, error).with_hint(hint));
        }
        if VolumeId::from_str(text).is_ok() {
            return Err(
                Failure::new(Kind::BadSource, "the source has no location").with_hint(format!(
                    "write {text}@LOCATION: a directory, bulla://host[:port] or http(s)://host/path"
                )),
            );
        }
        Err(self.without_id(text))
    }

    /// The failure for a location without a volume id. Nothing can be verified without the id, so nothing is
    /// read. The hint has the id that the location claims, for the user to compare.
    fn without_id(&self, text: &str) -> Failure {
        let failure = Failure::new(
            Kind::NoVolumeId,
            format!("{text}: the volume id is missing; without it nothing can be verified"),
        );
        let found = Location::from_str(text)
            .map_err(Failure::from)
            .and_then(|location| self.run(async move { claimed_id(&location, &self.tls).await }));
        match found {
            Ok(id) => {
                let hint = format!(
                    "the location claims the volume id {id}. Compare it with the id that the publisher gives you over a \
                     channel that you trust; if they are equal, write {id}@{text}"
                );
                failure.with_hint(hint)
            }
            Err(cause) => {
                let mut failure = failure;
                failure.push_cause(cause.error);
                failure
            }
        }
    }
}

/// Numbers, newest first, for people: at most ten.
fn numbers(all: &[u64]) -> String {
    let shown: Vec<String> = all.iter().take(10).map(u64::to_string).collect();
    let more = all.len().saturating_sub(shown.len());
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} older ones", shown.join(", ")),
    }
}

/// The further locations: those of the named source, and those of the flags.
fn mirrors(config: &Config, reading: &Reading) -> Outcome<Vec<Location>> {
    let named = config.source(&reading.source);
    let named = named.iter().flat_map(|named| &named.mirrors);
    named
        .chain(&reading.mirror)
        .map(|text| absolute(Location::from_str(text)?))
        .collect()
}

/// The runtime of a command.
pub fn runtime() -> Outcome<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::io("cannot start threads", &e))
}

/// Runs a future on `runtime` until it ends or Ctrl-C comes.
pub fn run<T>(runtime: &Runtime, future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    runtime.block_on(async {
        // Listens before the future begins: a signal that comes while it first runs would be lost, because an
        // earlier listener has replaced the default action.
        let mut interrupt = signal(SignalKind::interrupt())
            .map_err(|e| Failure::io("cannot listen for signals", &e))?;
        tokio::select! {
            biased;
            _ = interrupt.recv() => Err(interrupted()),
            outcome = future => outcome,
        }
    })
}

/// The failure for Ctrl-C while a volume was read. The output may be incomplete.
fn interrupted() -> Failure {
    Failure::new(Kind::Interrupted, "interrupted")
        .with_hint("run the command again; it starts over, and its output so far may be incomplete")
}

/// The failure for a path that the volume proves not to have.
pub fn not_found(path: &[u8]) -> Failure {
    let shown = crate::text::printable(path);
    Failure::new(Kind::NotFound, format!("{shown}: not in the volume"))
}

/// The volume id that a location claims. It is not verified.
async fn claimed_id(location: &Location, tls: &Tls) -> Outcome<VolumeId> {
    // A server with one volume answers with its head when the requested volume id is `UNBORN`.
    let replica = location.open_with(VolumeId::UNBORN, tls)?;
    Ok(volume::volume::claimed_id(replica.as_ref()).await?)
}

/// Whether [`on_interrupt`] handles signals. Process-wide, as signals are.
static HANDLED: AtomicBool = AtomicBool::new(false);

/// Runs `work`, which waits for the user, on a thread of its own. `None` if Ctrl-C or SIGTERM comes first, or
/// if `work` returns `None` because a signal interrupted it. Later signals end the program at once, unless
/// [`on_interrupt`] handles them.
pub fn unless_interrupted<T: Send + 'static>(
    work: impl FnOnce() -> Option<T> + Send + 'static,
) -> Outcome<Option<T>> {
    let runtime = small_runtime()?;
    let mut ending = runtime.block_on(async { Ending::listen() })?;
    let (tell, told) = tokio::sync::oneshot::channel();
    spawn("prompt", move || drop(tell.send(work())))?;
    let done = runtime.block_on(async {
        tokio::select! {
            done = told => done.ok().flatten(),
            () = ending.comes() => None,
        }
    });
    if done.is_some() {
        // Listening has replaced the default action of these signals, so a thread must end the program.
        let listen = move || {
            runtime.block_on(ending.comes());
            if !HANDLED.load(Ordering::SeqCst) {
                std::process::exit(Kind::Interrupted.exit().code().into());
            }
        };
        spawn("signals", listen)?;
    }
    Ok(done)
}

/// The signals that end a program.
pub struct Ending([Signal; 2]);

impl Ending {
    /// Starts to listen. Must be called within a runtime.
    pub fn listen() -> Outcome<Ending> {
        let on = |kind| signal(kind).map_err(|e| Failure::io("cannot listen for signals", &e));
        let interrupt = on(SignalKind::interrupt())?;
        Ok(Ending([interrupt, on(SignalKind::terminate())?]))
    }

    /// Waits for the next signal.
    pub async fn comes(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

/// Calls `action` on the first Ctrl-C or SIGTERM. A second one ends the program at once.
pub fn on_interrupt(action: impl FnOnce() + Send + 'static) -> Outcome<()> {
    HANDLED.store(true, Ordering::SeqCst);
    let runtime = small_runtime()?;
    let mut ending = runtime.block_on(async { Ending::listen() })?;
    let listen = move || {
        runtime.block_on(async {
            ending.comes().await;
            action();
            ending.comes().await;
            std::process::exit(Kind::Interrupted.exit().code().into());
        });
    };
    spawn("signals", listen)
}

/// A single-threaded runtime for signals.
fn small_runtime() -> Outcome<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::io("cannot listen for signals", &e))
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Outcome<()> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
        .map_err(|e| Failure::io("cannot start a thread", &e))
}

/// Makes a path absolute, so that it stays valid when this process changes its working directory.
pub fn absolute(location: Location) -> Outcome<Location> {
    match location {
        Location::Directory(path) => {
            let whole = std::path::absolute(&path);
            let whole = whole.map_err(|e| Failure::io(path.display().to_string(), &e))?;
            Ok(Location::Directory(whole))
        }
        server => Ok(server),
    }
}
