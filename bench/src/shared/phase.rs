//! Many devices that do one kind of work at the same time, and what became of each call.

use std::time::{Duration, Instant};

use anyhow::Result;
use share::client::Client;
use share::files::{Call, FileRef};
use tokio::task::JoinSet;
use trust::tree::inode::Content;

use super::device;
use crate::{cpu, process};

/// What the devices do.
#[derive(Clone, Copy)]
pub enum Kind {
    /// They make files.
    Create,
    /// They give one file one more name each time, which changes the file.
    Link,
}

/// One call of a device.
#[derive(Clone, Copy)]
pub struct Done {
    /// Number of the device.
    pub device: usize,
    /// Size of the log that the device had when the call began.
    pub from: u64,
    /// Size of the log after the call.
    pub at: u64,
    /// When it began, seconds after the work.
    pub began_s: f64,
    /// How long it took, seconds.
    pub took_s: f64,
}

/// What the devices did at the same time.
pub struct Phase {
    /// Every call, in the order of the log.
    pub calls: Vec<Done>,
    seconds: f64,
    /// Share of the processors that the devices and the server used.
    pub busy: f64,
}

impl Phase {
    /// Number of calls.
    pub fn done(&self) -> u64 {
        self.calls.len() as u64
    }

    /// Calls for each second.
    pub fn rate(&self) -> f64 {
        self.calls.len() as f64 / self.seconds
    }

    /// The call that took longest.
    pub fn slowest(&self) -> Option<&Done> {
        let longer = |a: &&Done, b: &&Done| a.took_s.total_cmp(&b.took_s);
        self.calls.iter().max_by(longer)
    }

    /// Most changes of others that came into the log between the beginning and the end of one call.
    pub fn most_passed(&self) -> u64 {
        let passed = self.calls.iter().map(|call| self.passed(call));
        passed.max().unwrap_or(0)
    }

    /// Changes of others that came into the log between the beginning and the end of this call.
    pub fn passed(&self, call: &Done) -> u64 {
        let within = |other: &&Done| {
            other.device != call.device && other.at > call.from && other.at < call.at
        };
        self.calls.iter().filter(within).count() as u64
    }
}

/// All devices work until the time is over; each begins an operation when its last one is done.
pub async fn phase(
    clients: &[Client],
    span: Duration,
    next: impl Fn(usize, u64) -> (String, Kind) + Copy + Send + 'static,
) -> Result<Phase> {
    process::check_stop()?;
    let mut tasks = JoinSet::new();
    let all = std::process::id();
    let (began, before_s) = (Instant::now(), cpu::tree_s(all)?);
    for (device, client) in clients.iter().cloned().enumerate() {
        tasks.spawn(async move {
            let mut calls = Vec::new();
            while began.elapsed() < span {
                let (path, kind) = next(device, calls.len() as u64);
                let (one, from) = (Instant::now(), client.view().size);
                let answered = device::call(&client, operation(&client, &path, kind)?).await?;
                calls.push(Done {
                    device,
                    from,
                    at: answered.at,
                    began_s: (one - began).as_secs_f64(),
                    took_s: one.elapsed().as_secs_f64(),
                });
            }
            anyhow::Ok(calls)
        });
    }
    let mut calls = Vec::new();
    while let Some(task) = tasks.join_next().await {
        calls.append(&mut task??);
    }
    let seconds = began.elapsed().as_secs_f64();
    let processors = std::thread::available_parallelism()?.get() as f64;
    calls.sort_by_key(|call| call.at);
    Ok(Phase {
        calls,
        seconds,
        busy: (cpu::tree_s(all)? - before_s) / seconds / processors,
    })
}

fn operation(client: &Client, path: &str, kind: Kind) -> Result<Call> {
    match kind {
        Kind::Create => device::create(client, path, 0o644, content()),
        Kind::Link => Ok(Call::Link {
            file: FileRef::Place(device::place(client, "file")?),
            to: device::place(client, path)?,
        }),
    }
}

fn content() -> Content {
    device::content(&[b'x'; 100])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_others_within_a_call_have_passed_it() {
        let call = |device, from, at, took_s| Done {
            device,
            from,
            at,
            began_s: 0.0,
            took_s,
        };
        let phase = Phase {
            calls: vec![
                call(1, 3, 5, 0.1),
                call(2, 3, 6, 0.1),
                call(0, 8, 9, 0.1),
                call(1, 5, 10, 0.1),
                call(0, 5, 12, 0.3),
            ],
            seconds: 0.5,
            busy: 0.0,
        };
        let slowest = phase.slowest().unwrap();
        assert_eq!((slowest.at, phase.passed(slowest)), (12, 2));
        assert_eq!((phase.most_passed(), phase.done()), (2, 5));
        assert_eq!(phase.rate(), 10.0);
    }
}
