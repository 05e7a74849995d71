//! `--metrics ADDR`: where it listens, and what a mount's page says. The format and who hands it out are
//! `serve::metrics`; docs/metrics.md lists every name.

use std::net::SocketAddr;

use ::mount::Report;
use ::mount::report::Disk;
use ::serve::metrics::{self, Kind, Page};
use store::mirrors::{Counts, Status};
use tokio::task::JoinHandle;

use crate::address::listen_address;
use crate::failure::{Failure, Outcome};

/// A page that is handed out until this is dropped.
#[derive(Debug)]
pub struct Answering {
    task: JoinHandle<()>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An address that is listened on and not yet answered at.
#[derive(Debug)]
pub struct Listening {
    listener: std::net::TcpListener,
    /// The address, its port chosen by the system where 0 was asked for.
    pub local: SocketAddr,
}

impl Listening {
    /// Listens on the address of the flag.
    pub fn on(text: &str) -> Outcome<Listening> {
        let address = listen_address(text)?;
        let failed = |e: std::io::Error| {
            let hint = "choose another address with --metrics; port 0 takes any free one";
            Failure::io(format!("cannot listen on {address} for metrics"), &e).with_hint(hint)
        };
        Listening::taken(std::net::TcpListener::bind(address).map_err(failed)?)
    }

    /// Listens on a socket that listens already.
    pub fn taken(listener: std::net::TcpListener) -> Outcome<Listening> {
        let failed = |e: std::io::Error| Failure::io("cannot listen for metrics", &e);
        listener.set_nonblocking(true).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        Ok(Listening { listener, local })
    }

    /// Hands out what `fill` writes, within a tokio runtime.
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

/// What a mount tells.
pub fn mount(page: &mut Page, report: &Report) {
    let volume = report.volume.to_string();
    let of_volume = &[("volume", volume.as_str())][..];
    let (memory_used, memory_limit) = report.memory_bytes;
    let (refreshes, failed) = report.refreshes;
    let fetches = &report.fetches;
    let left = report.valid_until_unix_s.saturating_sub(report.now_unix_s);
    let age = report.now_unix_s.saturating_sub(report.signed_unix_s);
    use Kind::{Counter, Gauge};
    let single: [(&'static str, Kind, u64, &str); 13] = [
        (
            "bulla_mount_version",
            Gauge,
            report.version,
            "The version that programs see",
        ),
        (
            "bulla_mount_statement_age_seconds",
            Gauge,
            age,
            "Since when the statement holds",
        ),
        (
            "bulla_mount_statement_left_seconds",
            Gauge,
            left,
            "How long it still holds; 0 is expired",
        ),
        (
            "bulla_mount_known_files",
            Gauge,
            report.known_files as u64,
            "Files that the kernel holds",
        ),
        (
            "bulla_mount_memory_bytes",
            Gauge,
            memory_used,
            "Memory that checked blocks take",
        ),
        (
            "bulla_mount_memory_limit_bytes",
            Gauge,
            memory_limit,
            "Memory that they may take",
        ),
        (
            "bulla_mount_refreshes_total",
            Counter,
            refreshes,
            "Looks for a newer version",
        ),
        (
            "bulla_mount_refreshes_failed_total",
            Counter,
            failed,
            "Looks that failed",
        ),
        (
            "bulla_mount_requests_total",
            Counter,
            fetches.requests,
            "Requests for blocks, hedges apart",
        ),
        (
            "bulla_mount_blocks_fetched_total",
            Counter,
            fetches.fetched,
            "Blocks wanted and received",
        ),
        (
            "bulla_mount_blocks_around_total",
            Counter,
            fetches.around,
            "Blocks received unasked and kept",
        ),
        (
            "bulla_mount_blocks_from_cache_total",
            Counter,
            fetches.from_disk,
            "Blocks that the disk cache had",
        ),
        (
            "bulla_mount_blocks_wrong_total",
            Counter,
            fetches.wrong,
            "Answers that failed a check",
        ),
    ];
    for (name, kind, value, help) in single {
        page.family(name, kind, help).sample(of_volume, value);
    }
    let what = "Requests of programs that failed, by the kind of error";
    page.family("bulla_mount_errors_total", Counter, what);
    for (kind, count) in &report.errors {
        page.sample(&[("volume", volume.as_str()), ("kind", *kind)], count);
    }
    mirrors(page, &report.mirrors, &volume);
    cache(page, report.disk.as_ref(), &volume);
}

fn mirrors(page: &mut Page, mirrors: &[Status], volume: &str) {
    type Get = fn(&Counts) -> u64;
    let counts: [(&'static str, Get, &str); 5] = [
        (
            "bulla_mirror_requests_total",
            |c| c.requests,
            "Requests for blocks",
        ),
        (
            "bulla_mirror_failures_total",
            |c| c.failures,
            "Requests without an answer in time",
        ),
        (
            "bulla_mirror_wrong_total",
            |c| c.wrong,
            "Blocks and answers that were not what was asked for",
        ),
        (
            "bulla_mirror_denials_total",
            |c| c.denials,
            "Requests of which it denied a block",
        ),
        (
            "bulla_mirror_hedges_total",
            |c| c.hedges,
            "Requests sent because another mirror was slow",
        ),
    ];
    for (name, get, help) in counts {
        page.family(name, Kind::Counter, help);
        for mirror in mirrors {
            let labels = [("volume", volume), ("mirror", mirror.place.as_str())];
            page.sample(&labels, get(&mirror.counts));
        }
    }
    type State = fn(&Status) -> Option<f64>;
    let states: [(&'static str, State, &str); 3] = [
        (
            "bulla_mirror_latency_seconds",
            |status| status.latency.map(|latency| latency.as_secs_f64()),
            "What a small answer is expected to take; absent before the first",
        ),
        (
            "bulla_mirror_set_aside",
            |status| Some(f64::from(u8::from(status.set_aside.is_some()))),
            "1 while it is not asked because of what it did",
        ),
        (
            "bulla_mirror_behind",
            |status| Some(f64::from(u8::from(status.behind))),
            "1 while its head is behind the version in use",
        ),
    ];
    for (name, get, help) in states {
        page.family(name, Kind::Gauge, help);
        for mirror in mirrors {
            let labels = [("volume", volume), ("mirror", mirror.place.as_str())];
            if let Some(value) = get(mirror) {
                page.sample(&labels, value);
            }
        }
    }
}

fn cache(page: &mut Page, disk: Option<&Disk>, volume: &str) {
    type Get = fn(&Disk) -> u64;
    use Kind::{Counter, Gauge};
    let all: [(&'static str, Kind, Get, &str); 9] = [
        (
            "bulla_cache_used_bytes",
            Gauge,
            |d| d.used_bytes,
            "What the disk cache takes, of all processes",
        ),
        (
            "bulla_cache_quota_bytes",
            Gauge,
            |d| d.limits.quota_bytes,
            "What it may take",
        ),
        (
            "bulla_cache_full",
            Gauge,
            |d| u64::from(d.is_full),
            "1 while the disk has too little space",
        ),
        (
            "bulla_cache_hits_total",
            Counter,
            |d| d.hits,
            "Blocks given out",
        ),
        (
            "bulla_cache_misses_total",
            Counter,
            |d| d.misses,
            "Blocks that were not there",
        ),
        (
            "bulla_cache_written_total",
            Counter,
            |d| d.written,
            "Blocks written",
        ),
        (
            "bulla_cache_refused_total",
            Counter,
            |d| d.refused,
            "Blocks for which there was no room",
        ),
        (
            "bulla_cache_damaged_total",
            Counter,
            |d| d.damaged,
            "Blocks that were damaged, and are gone",
        ),
        (
            "bulla_cache_evicted_total",
            Counter,
            |d| d.evicted,
            "Blocks removed to make room",
        ),
    ];
    for (name, kind, get, help) in all {
        page.family(name, kind, help);
        if let Some(disk) = disk {
            page.sample(&[("volume", volume)], get(disk));
        }
    }
}
