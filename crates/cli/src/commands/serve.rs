//! `bulla serve REPO...`: serves repositories over the network. A server has no key; readers verify what it
//! sends.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use ::serve::metrics::Page;
use ::serve::mirror::{Options, Server};
use ::serve::net::{Limits, Listen};
use replica::note::ReplicaNote;
use serde_json::json;
use store::repository::Repository;
use tokio::signal::unix::{SignalKind, signal};

use crate::activation::Passed;
use crate::address::listen_address;
use crate::args::Serve;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::metrics::Listening;
use crate::notify;
use crate::output::{Done, Output, fields};
use crate::session;

/// Serves until SIGTERM or SIGINT.
pub fn run(args: &Serve, config: &Config, output: &mut Output) -> Outcome<Done> {
    let places = Places::find(args, config)?;
    let mut repositories = Vec::new();
    for path in &args.repo {
        let repository = Repository::open(path)?;
        tell_scope(&repository, path, output);
        repositories.push(repository);
    }
    let volumes: Vec<(String, String)> = repositories
        .iter()
        .zip(&args.repo)
        .map(|(repository, path)| Ok((claimed(repository)?, path.display().to_string())))
        .collect::<Outcome<_>>()?;
    let runtime = session::runtime()?;
    runtime.block_on(async {
        let (server, metrics) = places.open(repositories, limits(args), options(args))?;
        let mut answering = Vec::new();
        for listening in metrics {
            announce_metrics(output, listening.local)?;
            let counters = server.counters();
            let fill = move |page: &mut Page| ::serve::mirror::metrics::write(page, &counters);
            answering.push(listening.answer(fill)?);
        }
        announce(output, &server, &volumes)?;
        serve(server, volumes.len()).await?;
        drop(answering);
        Ok::<_, Failure>(())
    })?;
    output.note("stopped");
    Ok(Done::ok(fields(json!({}))))
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
    metrics: Vec<Listening>,
}

impl Places {
    /// Sockets of a service manager replace the flag and the setting of their kind.
    fn find(args: &Serve, config: &Config) -> Outcome<Places> {
        let passed = Passed::take()?;
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
        let metrics = if passed.metrics.is_empty() {
            let flag = args.metrics.as_deref().map(Listening::on).transpose()?;
            flag.into_iter().collect()
        } else {
            refuse_both(args.metrics.as_deref(), "--metrics")?;
            let taken = passed.metrics.into_iter().map(Listening::taken);
            taken.collect::<Outcome<_>>()?
        };
        Ok(Places {
            bulla,
            http,
            metrics,
        })
    }

    /// Starts the server on all addresses.
    fn open(
        self,
        repositories: Vec<Repository>,
        limits: Limits,
        options: Options,
    ) -> Outcome<(Server, Vec<Listening>)> {
        let mut bulla = self.bulla.into_iter();
        let first = bulla.next().ok_or_else(|| {
            let hint = "give it one with --listen, or remove the setting";
            Failure::new(Kind::Usage, "the address to listen on is empty").with_hint(hint)
        })?;
        let mut server = Server::bind(first, repositories, limits, options)?;
        for place in bulla {
            server = server.also(place)?;
        }
        for place in self.http {
            server = server.also_http(place)?;
        }
        Ok((server, self.metrics))
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

/// Serves until SIGTERM or SIGINT; SIGHUP looks for new versions at once.
async fn serve(server: Server, volumes: usize) -> Outcome<()> {
    let failed = |e| Failure::io("cannot listen for signals", &e);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    let refresher = server.refresher();
    let again = tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            refresher.refresh();
        }
    });
    let stop = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        notify::stopping();
    };
    notify::ready(&format!("volumes served: {volumes}"));
    server.run(stop).await;
    again.abort();
    Ok(())
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
fn announce_metrics(output: &mut Output, local: SocketAddr) -> Outcome<()> {
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
    output.flush()
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
