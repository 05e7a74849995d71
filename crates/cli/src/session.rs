//! What reading commands share: the runtime, the name that stands for a SOURCE, the open volume, and
//! Ctrl-C.

use std::future::Future;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reader::ReadError;
use store::Replica;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use trust::judge::Freshness;
use trust::statement::VolumeId;
use volume::{Volume, VolumeOptions};
use wire::http::Tls;
use wire::location::{self, Location, Source};

use crate::args::Reading;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::Output;
use crate::units;

/// A command that talks to places: its runtime and its settings.
#[derive(Debug)]
pub struct Session {
    runtime: Runtime,
    state_dir: PathBuf,
    deadline: Duration,
    tls: Tls,
    freshness: Freshness,
}

impl Session {
    /// Starts the runtime.
    pub fn start(config: &Config, reading: &Reading) -> Outcome<Session> {
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
            freshness: match reading.freshness {
                Some(freshness) => freshness,
                None => units::parse_freshness(config.text("freshness"))
                    .map_err(|why| Failure::new(Kind::Config, why))?,
            },
        })
    }

    /// Opens the volume that the arguments name. Where only the grace keeps it readable, that is
    /// told, in the result record too.
    pub fn open(
        &self,
        config: &Config,
        reading: &Reading,
        output: &mut Output,
    ) -> Outcome<Arc<Volume>> {
        self.open_toward(config, reading, &[], output)
    }

    /// Like [`Session::open`], by a command that reads `path` next.
    pub fn open_toward(
        &self,
        config: &Config,
        reading: &Reading,
        path: &[u8],
        output: &mut Output,
    ) -> Outcome<Arc<Volume>> {
        let source = self.source(config, &reading.source)?;
        let mirrors = reading
            .mirror
            .iter()
            .map(|text| absolute(Location::from_str(text)?));
        let mirrors: Vec<Location> = mirrors.collect::<Outcome<_>>()?;
        let options = VolumeOptions {
            state_directory: self.state_dir.clone(),
            cache_bytes: reading.caching.memory_bytes(config)?,
            disk_cache: reading.caching.open(config)?,
            deadline: self.deadline,
            freshness: self.freshness,
            toward: (!path.is_empty()).then(|| path.to_vec()),
            ..VolumeOptions::default()
        };
        let volume = self.run(async {
            let replicas = location::open_all(&source, &mirrors, &self.tls)?;
            Ok(Volume::open(source.volume, replicas, options).await?)
        })?;
        if volume.is_stale() {
            let ended = units::time(volume.snapshot().fresh_until());
            output.stale(&ended);
        }
        if volume.is_offline() {
            output.offline(volume.snapshot().record().version);
        }
        Ok(volume)
    }

    /// The volume and the places that the arguments name. One that cannot be opened is told and left
    /// out, as long as another can.
    pub fn places(
        &self,
        config: &Config,
        reading: &Reading,
    ) -> Outcome<(VolumeId, Vec<Arc<dyn Replica>>)> {
        let source = self.source(config, &reading.source)?;
        let mut locations = vec![source.location];
        for text in &reading.mirror {
            locations.push(absolute(Location::from_str(text)?)?);
        }
        let (mut places, mut failure) = (Vec::new(), None);
        // A connection is made by a task.
        let _runtime = self.runtime.enter();
        for location in locations {
            match location.open_with(source.volume, &self.tls) {
                Ok(place) => places.push(place),
                Err(error) => {
                    tracing::warn!(replica = %location, %error, "is left out");
                    failure.get_or_insert(error);
                }
            }
        }
        match failure {
            Some(error) if places.is_empty() => Err(error.into()),
            _ => Ok((source.volume, places)),
        }
    }

    /// How long an answer may take.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Runs a future to its end, or to Ctrl-C.
    pub fn run<T>(&self, future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        run(&self.runtime, future)
    }

    /// Runs a future that minds signals itself.
    pub fn serve<T>(&self, future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        self.runtime.block_on(future)
    }

    /// The SOURCE of an argument: a name from the configuration, or itself.
    fn source(&self, config: &Config, text: &str) -> Outcome<Source> {
        let named = config.source(text).map(|named| named.source.as_str());
        let text = named.unwrap_or(text);
        if text.contains('@') {
            let mut source = Source::from_str(text)?;
            source.location = absolute(source.location)?;
            return Ok(source);
        }
        if VolumeId::from_str(text).is_ok() {
            return Err(
                Failure::new(Kind::BadSource, "the source names no location").with_hint(format!(
                    "write {text}@LOCATION: a directory, bulla://host[:port] or http(s)://host/path"
                )),
            );
        }
        Err(self.without_id(text))
    }

    /// A location without a volume id: nothing is trusted, so nothing is read; but the id that the
    /// place claims is named, so that a person can compare it.
    fn without_id(&self, text: &str) -> Failure {
        let failure = Failure::new(
            Kind::NoVolumeId,
            format!("{text}: the volume id is missing, and nothing is trusted without it"),
        );
        let found = Location::from_str(text)
            .map_err(Failure::from)
            .and_then(|location| self.run(async move { claimed_id(&location, &self.tls).await }));
        match found {
            Ok(id) => {
                let hint = format!(
                    "the place says that it is {id}. Compare that with the publisher's word over a \
                     way that you trust, and pin it by writing {id}@{text}"
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

/// The runtime of a command.
pub fn runtime() -> Outcome<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::io("cannot start threads", &e))
}

/// Runs a future on `runtime` to its end, or to Ctrl-C.
pub fn run<T>(runtime: &Runtime, future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    runtime.block_on(async {
        tokio::select! {
            outcome = future => outcome,
            _ = tokio::signal::ctrl_c() => Err(interrupted()),
        }
    })
}

/// Ctrl-C while a volume was read: there is nothing half-finished to go on with but what was printed.
fn interrupted() -> Failure {
    Failure::new(Kind::Interrupted, "interrupted").with_hint(
        "run the command again, which begins anew; what it has printed so far may not be all",
    )
}

/// Names the path that was asked for, where the reader's error does not know it.
pub fn about(path: &[u8]) -> impl Fn(ReadError) -> ReadError + '_ {
    move |error| match error {
        ReadError::WrongKind { path: unknown, why } if unknown.is_empty() => {
            let path = crate::text::printable(path);
            ReadError::WrongKind { path, why }
        }
        error => error,
    }
}

/// A path that the volume proves not to have.
pub fn not_found(path: &[u8]) -> Failure {
    let shown = crate::text::printable(path);
    Failure::new(Kind::NotFound, format!("{shown}: not in the volume"))
}

/// The volume id that a place claims to have, believed in nothing.
async fn claimed_id(location: &Location, tls: &Tls) -> Outcome<VolumeId> {
    // A server with one volume answers for it when it is asked for the volume that nobody has.
    let replica = location.open_with(VolumeId::UNBORN, tls)?;
    Ok(volume::volume::claimed_id(replica.as_ref()).await?)
}

/// Whether [`on_interrupt`] decides what a signal means.
static MINDED: AtomicBool = AtomicBool::new(false);

/// Does what waits for a person, on a thread of its own; `None` when Ctrl-C or SIGTERM comes first, or
/// when `work` says so because a signal cut off its waiting. Later signals end the program at once,
/// unless [`on_interrupt`] minds them.
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
        // From now on the system's own way to end this program is gone.
        let listen = move || {
            runtime.block_on(ending.comes());
            if !MINDED.load(Ordering::SeqCst) {
                std::process::exit(Kind::Interrupted.exit().code().into());
            }
        };
        spawn("signals", listen)?;
    }
    Ok(done)
}

/// The signals that end a program.
struct Ending([Signal; 2]);

impl Ending {
    /// Listens from now on; within a runtime.
    fn listen() -> Outcome<Ending> {
        let on = |kind| signal(kind).map_err(|e| Failure::io("cannot listen for signals", &e));
        let interrupt = on(SignalKind::interrupt())?;
        Ok(Ending([interrupt, on(SignalKind::terminate())?]))
    }

    /// Waits for one.
    async fn comes(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

/// Calls `action` on the first Ctrl-C or SIGTERM; a second one ends the program at once. The thread
/// ends with the program.
pub fn on_interrupt(action: impl FnOnce() + Send + 'static) -> Outcome<()> {
    MINDED.store(true, Ordering::SeqCst);
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

/// A runtime of one thread, for signals.
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

/// A place that stays the same when this process changes its directory.
fn absolute(location: Location) -> Outcome<Location> {
    match location {
        Location::Directory(path) => {
            let whole = std::path::absolute(&path);
            let whole = whole.map_err(|e| Failure::io(path.display().to_string(), &e))?;
            Ok(Location::Directory(whole))
        }
        server => Ok(server),
    }
}
