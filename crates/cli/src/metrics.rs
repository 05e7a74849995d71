//! `--metrics ADDR`: the listener, and the metrics of a mount. `serve::metrics` has the text format and the
//! HTTP server; docs/metrics.md lists every metric.

use std::net::SocketAddr;

use ::mount::Report;
use ::mount::report::Disk;
use ::serve::metrics::{self, Kind, Page};
use store::mirrors::Status;
use tokio::task::JoinHandle;

use crate::address::listen_address;
use crate::failure::{Failure, Outcome};

/// Serves the page until it is dropped.
#[derive(Debug)]
pub struct Answering {
    task: JoinHandle<()>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A socket that listens and is not served yet.
#[derive(Debug)]
pub struct Listening {
    listener: std::net::TcpListener,
    /// The bound address. The system chooses the port if port 0 is asked for.
    pub local: SocketAddr,
}

impl Listening {
    /// Binds the address that the flag names.
    pub fn on(text: &str) -> Outcome<Listening> {
        let address = listen_address(text)?;
        let failed = |e: std::io::Error| {
            let hint = "choose another address with --metrics; port 0 takes any free one";
            Failure::io(format!("cannot listen on {address} for metrics"), &e).with_hint(hint)
        };
        Listening::taken(std::net::TcpListener::bind(address).map_err(failed)?)
    }

    /// Takes a socket that listens already.
    pub fn taken(listener: std::net::TcpListener) -> Outcome<Listening> {
        let failed = |e: std::io::Error| Failure::io("cannot listen for metrics", &e);
        listener.set_nonblocking(true).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        Ok(Listening { listener, local })
    }

    /// Serves the page that `fill` writes. Must be called within a tokio runtime.
    pub fn answer(self, fill: impl Fn(&mut Page) + Send + Sync + 'static) -> Outcome<Answering> {
        let listener = tokio::net::TcpListener::from_std(self.listener)
            .map_err(|e| Failure::io("cannot listen for metrics", &e))?;
        let render = move || {
            let mut page = Page::default();
            page.build_info(env!("CARGO_PKG_VERSION"));
            fill(&mut page);
            page.finish()
        };
        let task = tokio::spawn(async move { match metrics::answer(listener, render).await {} });
        Ok(Answering { task })
    }
}

/// A metric that is read from `T`.
struct Metric<T> {
    name: &'static str,
    kind: Kind,
    value: fn(&T) -> u64,
    help: &'static str,
}

const fn counter<T>(name: &'static str, value: fn(&T) -> u64, help: &'static str) -> Metric<T> {
    let kind = Kind::Counter;
    Metric {
        name,
        kind,
        value,
        help,
    }
}

const fn gauge<T>(name: &'static str, value: fn(&T) -> u64, help: &'static str) -> Metric<T> {
    let kind = Kind::Gauge;
    Metric {
        name,
        kind,
        value,
        help,
    }
}

/// The metrics of a mount.
const MOUNT: [Metric<Report>; 12] = [
    gauge(
        "bulla_mount_version",
        |report| report.version,
        "The version that the mount shows",
    ),
    gauge(
        "bulla_mount_statement_age_seconds",
        |report| report.now_unix_s.saturating_sub(report.signed_unix_s),
        "Time since the statement was signed",
    ),
    gauge(
        "bulla_mount_known_files",
        |report| report.known_files as u64,
        "Files that the kernel has references to",
    ),
    gauge(
        "bulla_mount_memory_bytes",
        |report| report.memory_bytes.0,
        "Memory used by verified blocks",
    ),
    gauge(
        "bulla_mount_memory_limit_bytes",
        |report| report.memory_bytes.1,
        "Limit of the memory for verified blocks",
    ),
    counter(
        "bulla_mount_refreshes_total",
        |report| report.refreshes.0,
        "Refreshes: checks for a newer version",
    ),
    counter(
        "bulla_mount_refreshes_failed_total",
        |report| report.refreshes.1,
        "Refreshes that failed",
    ),
    counter(
        "bulla_mount_requests_total",
        |report| report.fetches.requests,
        "Requests for blocks, without hedged requests",
    ),
    counter(
        "bulla_mount_blocks_fetched_total",
        |report| report.fetches.fetched,
        "Blocks requested and received",
    ),
    counter(
        "bulla_mount_blocks_around_total",
        |report| report.fetches.around,
        "Blocks received without a request and kept",
    ),
    counter(
        "bulla_mount_blocks_from_cache_total",
        |report| report.fetches.from_disk,
        "Blocks read from the disk cache",
    ),
    counter(
        "bulla_mount_blocks_wrong_total",
        |report| report.fetches.wrong,
        "Answers that failed verification",
    ),
];

/// The metrics of one mirror of a mount.
const MIRROR: [Metric<Status>; 7] = [
    counter(
        "bulla_mirror_requests_total",
        |mirror| mirror.counts.requests,
        "Requests for blocks",
    ),
    counter(
        "bulla_mirror_failures_total",
        |mirror| mirror.counts.failures,
        "Requests without an answer in time",
    ),
    counter(
        "bulla_mirror_wrong_total",
        |mirror| mirror.counts.wrong,
        "Blocks and answers that failed verification",
    ),
    counter(
        "bulla_mirror_denials_total",
        |mirror| mirror.counts.denials,
        "Requests for which the mirror denied a block",
    ),
    counter(
        "bulla_mirror_hedges_total",
        |mirror| mirror.counts.hedges,
        "Requests sent because another mirror was slow",
    ),
    gauge(
        "bulla_mirror_set_aside",
        |mirror| mirror.set_aside.is_some().into(),
        "1 while the mirror is not asked because of its faults",
    ),
    gauge(
        "bulla_mirror_behind",
        |mirror| mirror.behind.into(),
        "1 while the head of the mirror is older than the version in use",
    ),
];

/// The metrics of the disk cache of a mount.
const CACHE: [Metric<Disk>; 9] = [
    gauge(
        "bulla_cache_used_bytes",
        |disk| disk.used_bytes,
        "Size of the disk cache, which processes may share",
    ),
    gauge(
        "bulla_cache_quota_bytes",
        |disk| disk.limits.quota_bytes,
        "Limit of the size of the disk cache",
    ),
    gauge(
        "bulla_cache_full",
        |disk| disk.is_full.into(),
        "1 while the disk has too little free space",
    ),
    counter(
        "bulla_cache_hits_total",
        |disk| disk.hits,
        "Blocks found in the cache",
    ),
    counter(
        "bulla_cache_misses_total",
        |disk| disk.misses,
        "Blocks not found in the cache",
    ),
    counter(
        "bulla_cache_written_total",
        |disk| disk.written,
        "Blocks written to the cache",
    ),
    counter(
        "bulla_cache_refused_total",
        |disk| disk.refused,
        "Blocks not written for lack of space",
    ),
    counter(
        "bulla_cache_damaged_total",
        |disk| disk.damaged,
        "Damaged blocks found and removed",
    ),
    counter(
        "bulla_cache_evicted_total",
        |disk| disk.evicted,
        "Blocks removed to make space",
    ),
];

/// Writes the metrics of a mount.
pub fn mount(page: &mut Page, report: &Report) {
    let volume = report.volume.to_string();
    for metric in &MOUNT {
        page.family(metric.name, metric.kind, metric.help);
        page.sample(&[("volume", &volume)], (metric.value)(report));
    }
    for (name, help, end) in [
        (
            "bulla_mount_statement_left_seconds",
            "Time until the statement expires; 0 if it has expired; no sample while the mount stays at a \
             version",
            report.valid_until_unix_s,
        ),
        (
            "bulla_mount_policy_left_seconds",
            "Time until the policy of the volume ends; very large if it has no end; no sample while the mount stays \
             at a version",
            Some(report.policy_until_unix_s.unwrap_or(u64::MAX)),
        ),
    ] {
        page.family(name, Kind::Gauge, help);
        if let (Some(end), Some(_)) = (end, report.valid_until_unix_s) {
            let left_s = end.saturating_sub(report.now_unix_s);
            page.sample(&[("volume", &volume)], left_s);
        }
    }
    let help = "Failed requests of programs, by the kind of error";
    page.family("bulla_mount_errors_total", Kind::Counter, help);
    for (kind, count) in &report.errors {
        page.sample(&[("volume", &volume), ("kind", kind)], count);
    }
    mirrors(page, &report.mirrors, &volume);
    for metric in &CACHE {
        page.family(metric.name, metric.kind, metric.help);
        if let Some(disk) = &report.disk {
            page.sample(&[("volume", &volume)], (metric.value)(disk));
        }
    }
}

fn mirrors(page: &mut Page, mirrors: &[Status], volume: &str) {
    for metric in &MIRROR {
        page.family(metric.name, metric.kind, metric.help);
        for mirror in mirrors {
            let labels = [("volume", volume), ("mirror", &*mirror.place)];
            page.sample(&labels, (metric.value)(mirror));
        }
    }
    let help = "Expected time of a small answer; no sample before the first answer";
    page.family("bulla_mirror_latency_seconds", Kind::Gauge, help);
    for mirror in mirrors {
        let labels = [("volume", volume), ("mirror", &*mirror.place)];
        if let Some(latency) = mirror.latency {
            page.sample(&labels, latency.as_secs_f64());
        }
    }
}
