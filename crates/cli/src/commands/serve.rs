//! `bulla serve REPO...`: a mirror. It holds no key and checks nothing; what it could lie about, the
//! readers check.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use ::serve::metrics::Page;
use ::serve::{Limits, Server};
use publish::pull::note::ReplicaNote;
use serde_json::json;
use store::repository::Repository;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Serve;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::metrics::Listening;
use crate::output::{Done, Output, fields};
use crate::session;

/// Serves until SIGTERM or SIGINT.
pub fn run(args: &Serve, config: &Config, output: &mut Output) -> Outcome<Done> {
    let text = args
        .listen
        .as_deref()
        .unwrap_or_else(|| config.text("listen"));
    let address = listen_address(text)?;
    let http = args.http.as_deref().unwrap_or_else(|| config.text("http"));
    let http = Some(http).filter(|text| !text.is_empty());
    let http = http.map(listen_address).transpose()?;
    let mut repositories = Vec::new();
    for path in &args.repo {
        let repository = Repository::open(path)?;
        tell_scope(&repository, path, output);
        repositories.push(repository);
    }
    let mut limits = Limits::default();
    if let Some(connections) = args.max_connections {
        limits.max_connections = connections.max(1);
    }
    if let Some(connections) = args.max_per_client {
        limits.max_per_client = connections.max(1);
    }
    if let Some(bytes) = args.memory {
        limits.hot_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    let volumes: Vec<(String, String)> = repositories
        .iter()
        .zip(&args.repo)
        .map(|(repository, path)| Ok((claimed(repository)?, path.display().to_string())))
        .collect::<Outcome<_>>()?;
    let metrics = args.metrics.as_deref().map(Listening::on).transpose()?;
    let runtime = session::runtime()?;
    runtime.block_on(async {
        let mut server = Server::bind(address, repositories, limits)?;
        if let Some(http) = http {
            server = server.also_http(http)?;
        }
        let counters = server.counters();
        let answering = match metrics {
            Some(listening) => {
                announce_metrics(output, listening.local)?;
                let fill = move |page: &mut Page| ::serve::metrics::server(page, &counters);
                Some(listening.answer(fill)?)
            }
            None => None,
        };
        announce(output, &server, &volumes)?;
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
        };
        server.run(stop).await;
        again.abort();
        drop(answering);
        Ok::<_, Failure>(())
    })?;
    output.note("stopped");
    Ok(Done::ok(fields(json!({}))))
}

fn claimed(repository: &Repository) -> Outcome<String> {
    let statements = repository.statements();
    if statements.is_empty() {
        return Ok("nothing published yet".to_owned());
    }
    let head = trust::head::Head::decode(&statements);
    let id = head.and_then(|head| publish::source::claimed_in(&head));
    Ok(id
        .map_err(|why| Failure::of(Kind::BadHead, "the repository's head is none", &why))?
        .to_string())
}

/// Says where metrics are.
fn announce_metrics(output: &mut Output, local: SocketAddr) -> Outcome<()> {
    if output.json() {
        let record = json!({"address": local.to_string()});
        return output.record("metrics", fields(record));
    }
    output.note(&format!("metrics are at http://{local}/metrics"));
    Ok(())
}

/// What is served where: lines that can be copied whole into a reader's command.
fn announce(output: &mut Output, server: &Server, volumes: &[(String, String)]) -> Outcome<()> {
    let local = server.local_addr();
    for (volume, repository) in volumes {
        let mut sources = vec![(local, format!("{volume}@bulla://{local}"))];
        if let Some(http) = server.http_addr() {
            sources.push((http, format!("{volume}@http://{http}/{volume}")));
        }
        for (address, source) in sources {
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

/// A replica of some paths says so: its readers need another place for the rest.
fn tell_scope(repository: &Repository, path: &Path, output: &Output) {
    let note = ReplicaNote::load(repository).ok().flatten();
    let scope = note.and_then(|note| Some(note.proved.first()?.1.clone()));
    if let Some(scope) = scope.filter(|scope| !scope.is_everything()) {
        let path = path.display();
        output.note(&format!("{path} holds only {scope}; all else it denies"));
    }
}

/// An address to listen on, as people write it.
pub fn listen_address(text: &str) -> Outcome<SocketAddr> {
    let wrong = || {
        Failure::new(Kind::Usage, format!("`{text}` is no address to listen on")).with_hint(
            "write HOST:PORT, as 127.0.0.1:28552, [::]:28552 or :28552 for every address",
        )
    };
    let whole = match text.strip_prefix(':') {
        Some(port) => format!("[::]:{port}"),
        None => text.to_owned(),
    };
    whole
        .to_socket_addrs()
        .ok()
        .and_then(|mut found| found.next())
        .ok_or_else(wrong)
}
