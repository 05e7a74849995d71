//! `bulla serve REPO...`: serves repositories over the network. A server of published volumes has no key; readers verify
//! what it sends. That of shared volumes has one, with which it signs the order of writes.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use ::serve::metrics::Page;
use ::serve::mirror::{Options, Server};
use ::serve::net::{Limits, Listen};
use replica::note::ReplicaNote;
use serde_json::json;
use store::repository::Repository;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::activation::Passed;
use crate::address::listen_address;
use crate::args::{Global, Serve};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::metrics::Listening as MetricsAddress;
use crate::notify;
use crate::output::{Done, Output, fields};
use crate::session;

pub mod check;
mod shared;

use shared::{Listening, Ordering};

/// Serves until SIGTERM or SIGINT.
pub fn run(args: &Serve, global: &Global, config: &Config, output: &mut Output) -> Outcome<Done> {
    let mut places = Places::find(args, config)?;
    let shared = Ordering::open(args, global)?;
    let mut repositories = Vec::new();
    let mut volumes = Vec::new();
    for path in args.repo.iter().filter(|path| !is_shared(&shared, path)) {
        let repository = Repository::open(path)?;
        tell_scope(&repository, path, output);
        volumes.push((claimed(&repository)?, path.display().to_string()));
        repositories.push(repository);
    }
    let runtime = session::runtime()?;
    runtime.block_on(async {
        let server = match repositories.is_empty() {
            true => places.refuse_unused(args).map(|()| None)?,
            false => Some(places.open(repositories, limits(args), options(args))?),
        };
        let shared = match shared {
            Some(shared) => Some(shared.listen(args, std::mem::take(&mut places.shared))?),
            None => places.refuse_shared().map(|()| None)?,
        };
        // A program may send a signal as soon as it reads `serving`.
        let signals = Signals::listen()?;
        let mut answering = Vec::new();
        for listening in places.metrics {
            announce_metrics(output, listening.local)?;
            let mirror = server.as_ref().map(Server::counters);
            let shared = shared.as_ref().map(Listening::watched);
            answering.push(listening.answer(move |page: &mut Page| {
                if let Some(counters) = &mirror {
                    ::serve::mirror::metrics::write(page, counters);
                }
                if let Some((counters, hosts)) = &shared {
                    ::serve::shared::metrics::write(page, counters, hosts);
                }
            })?);
        }
        if let Some(server) = &server {
            announce(output, server, &volumes)?;
        }
        let mut count = volumes.len();
        if let Some(shared) = &shared {
            count += shared.announce(output)?;
        }
        output.flush()?;
        serve(server, shared, signals, count).await;
        drop(answering);
        Ok::<_, Failure>(())
    })?;
    output.note("stopped");
    Ok(Done::ok(fields(json!({}))))
}

fn is_shared(shared: &Option<Ordering>, path: &Path) -> bool {
    shared.as_ref().is_some_and(|shared| shared.has(path))
}

fn limits(args: &Serve) -> Limits {
    let mut limits = Limits::default();
    if let Some(connections) = args.max_connections {
        limits.max_connections = connections.max(1);
    }
    if let Some(connections) = args.max_per_client {
        limits.max_per_client = connections.max(1);
    }
    limits
}

fn options(args: &Serve) -> Options {
    let mut options = Options::default();
    if let Some(bytes) = args.memory {
        options.response_cache_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    options
}

/// The addresses and sockets to listen on.
struct Places {
    bulla: Vec<Listen>,
    http: Vec<Listen>,
    metrics: Vec<MetricsAddress>,
    shared: Vec<Listen>,
}

impl Places {
    /// Sockets of a service manager replace the flag and the setting of their kind.
    fn find(args: &Serve, config: &Config) -> Outcome<Places> {
        let passed = Passed::take()?;
        if !passed.witness.is_empty() {
            let error = "the service manager passed a socket `witness` to `bulla serve`";
            let hint = "it is for `bulla witness run`: remove it from this service";
            return Err(Failure::new(Kind::Usage, error).with_hint(hint));
        }
        let choose = |sockets: Vec<TcpListener>, flag: Option<&str>, name: &str, text: &str| {
            if sockets.is_empty() {
                let text = Some(flag.unwrap_or(text)).filter(|text| !text.is_empty());
                let address = text.map(listen_address).transpose()?;
                return Ok(address.map(Listen::At).into_iter().collect());
            }
            refuse_both(flag, name)?;
            Ok::<Vec<Listen>, Failure>(sockets.into_iter().map(Listen::On).collect())
        };
        let text = config.text("listen");
        let bulla = choose(passed.bulla, args.listen.as_deref(), "--listen", text)?;
        let text = config.text("http");
        let http = choose(passed.http, args.http.as_deref(), "--http", text)?;
        if !passed.shared.is_empty() {
            refuse_both(args.shared.shared.as_deref(), "--shared")?;
        }
        let metrics = if passed.metrics.is_empty() {
            let flag = args
                .metrics
                .as_deref()
                .map(MetricsAddress::on)
                .transpose()?;
            flag.into_iter().collect()
        } else {
            refuse_both(args.metrics.as_deref(), "--metrics")?;
            let taken = passed.metrics.into_iter().map(MetricsAddress::taken);
            taken.collect::<Outcome<_>>()?
        };
        Ok(Places {
            bulla,
            http,
            metrics,
            shared: passed.shared.into_iter().map(Listen::On).collect(),
        })
    }

    /// Refuses a socket for shared volumes, where there is none.
    fn refuse_shared(&self) -> Outcome<()> {
        if self.shared.is_empty() {
            return Ok(());
        }
        let error = "the service manager passed a socket `shared`, and no REPO is a shared volume";
        let hint = "name the directory of a shared volume, or remove the socket unit";
        Err(Failure::new(Kind::Usage, error).with_hint(hint))
    }

    /// Refuses flags that only published volumes have use for, where there is none.
    fn refuse_unused(&self, args: &Serve) -> Outcome<()> {
        let flags = [
            (args.listen.is_some(), "--listen"),
            (args.http.is_some(), "--http"),
            (args.memory.is_some(), "--memory"),
        ];
        match flags.iter().find(|(is_given, _)| *is_given) {
            None => Ok(()),
            Some((_, flag)) => {
                let error = format!("{flag} is for published volumes, and REPO is a shared volume");
                let hint = "give the address for its devices with --shared ADDR";
                Err(Failure::new(Kind::Usage, error).with_hint(hint))
            }
        }
    }

    /// Starts the server on all addresses.
    fn open(
        &mut self,
        repositories: Vec<Repository>,
        limits: Limits,
        options: Options,
    ) -> Outcome<Server> {
        let mut bulla = std::mem::take(&mut self.bulla).into_iter();
        let first = bulla.next().ok_or_else(|| {
            let hint = "give it one with --listen, or remove the setting";
            Failure::new(Kind::Usage, "the address to listen on is empty").with_hint(hint)
        })?;
        let mut server = Server::bind(first, repositories, limits, options)?;
        for place in bulla {
            server = server.also(place)?;
        }
        for place in std::mem::take(&mut self.http) {
            server = server.also_http(place)?;
        }
        Ok(server)
    }
}

/// Refuses a flag if there is a socket for it as well.
fn refuse_both(flag: Option<&str>, name: &str) -> Outcome<()> {
    if flag.is_none() {
        return Ok(());
    }
    let what = format!("{name} is given, and the service manager passed a socket for it");
    let hint = format!("remove {name} from the service unit, or remove the socket unit");
    Err(Failure::new(Kind::Usage, what).with_hint(hint))
}

/// The signals of a server, from now on.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Outcome<Signals> {
        let on = |kind| signal(kind).map_err(|e| Failure::io("cannot listen for signals", &e));
        Ok(Signals {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }
}

/// Serves until SIGTERM or SIGINT; SIGHUP looks for new versions at once.
async fn serve(
    server: Option<Server>,
    shared: Option<Listening>,
    signals: Signals,
    volumes: usize,
) {
    let Signals {
        mut interrupt,
        mut terminate,
        mut hangup,
    } = signals;
    let refresher = server.as_ref().map(Server::refresher);
    let again = tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            if let Some(refresher) = &refresher {
                refresher.refresh();
            }
        }
    });
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let ending = tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        notify::stopping();
        // The servers may have ended.
        let _ = stop.send(true);
    });
    let until = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    notify::ready(&format!("volumes served: {volumes}"));
    let published = async {
        if let Some(server) = server {
            server.run(until(stopped.clone())).await;
        }
    };
    let ordered = async {
        if let Some(shared) = shared {
            shared.run(until(stopped.clone())).await;
        }
    };
    tokio::join!(published, ordered);
    ending.abort();
    again.abort();
}

fn claimed(repository: &Repository) -> Outcome<String> {
    let statements = repository.statements();
    if statements.is_empty() {
        return Ok("nothing published yet".to_owned());
    }
    let head = trust::head::Head::decode(&statements);
    let id = head.and_then(|head| head.volume());
    Ok(id
        .map_err(|why| {
            Failure::of(
                Kind::BadHead,
                "the head of the repository is not valid",
                &why,
            )
        })?
        .to_string())
}

/// Prints the address of the metrics.
pub fn announce_metrics(output: &mut Output, local: SocketAddr) -> Outcome<()> {
    if output.json() {
        let record = json!({"address": local.to_string()});
        return output.record("metrics", fields(record));
    }
    output.note(&format!("metrics are at http://{local}/metrics"));
    Ok(())
}

/// Prints the SOURCE of each volume at each address, ready to be copied.
fn announce(output: &mut Output, server: &Server, volumes: &[(String, String)]) -> Outcome<()> {
    for (volume, repository) in volumes {
        let bulla = server.local_addrs();
        let bulla = bulla.map(|at| (at, format!("{volume}@bulla://{at}")));
        let http = server.http_addrs().iter();
        let http = http.map(|at| (*at, format!("{volume}@http://{at}/{volume}")));
        for (address, source) in bulla.chain(http) {
            if output.json() {
                let record = json!({"volume": volume, "repository": repository,
                    "address": address.to_string(), "source": source});
                output.record("serving", fields(record))?;
            } else {
                output.line(&source)?;
            }
        }
    }
    Ok(())
}

/// Notes that a repository is a partial replica: its readers need another location for the rest.
fn tell_scope(repository: &Repository, path: &Path, output: &Output) {
    let note = ReplicaNote::load(repository).ok().flatten();
    let scope = note.and_then(|note| Some(note.proved.first()?.1.clone()));
    if let Some(scope) = scope.filter(|scope| !scope.is_everything()) {
        let path = path.display();
        output.note(&format!(
            "{path} holds only {scope}; readers need another location for the rest"
        ));
    }
}
