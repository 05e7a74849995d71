//! A shared volume that a command has opened: the runtime, and what the command tells when it ends.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::share::client::{ClientError, OtherPlace};
use ::share::home::Home;
use bulla::shared::{SharedOptions, SharedVolume};
use tokio::runtime::Runtime;

use super::recovery;
use crate::args::Waiting;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::Output;
use crate::session;

/// How long a command that the server has not answered in time stays for other programs that use its engine: nobody
/// answers them either.
const GIVES_UP: Duration = Duration::from_secs(1);

/// A shared volume and the runtime of its command.
pub struct Opened {
    runtime: Runtime,
    shared: SharedVolume,
}

impl Deref for Opened {
    type Target = SharedVolume;

    fn deref(&self) -> &SharedVolume {
        &self.shared
    }
}

impl Opened {
    /// Opens the volume with this name or id.
    pub fn named(config: &Config, name: &str, waiting: &Waiting) -> Outcome<Opened> {
        Opened::start(config, super::home(config, name)?, waiting.deadline)
    }

    /// Opens the volume for a command that shows what this device knows, also without its server.
    pub fn alone(config: &Config, name: &str, waiting: &Waiting) -> Outcome<Opened> {
        Opened::start_alone(config, super::home(config, name)?, waiting.deadline)
    }

    /// As [`Opened::alone`], with the home.
    pub fn start_alone(config: &Config, home: Home, deadline: Option<Duration>) -> Outcome<Opened> {
        Opened::begin(config, home, deadline, None, true)
    }

    /// Opens the volume of a home.
    pub fn start(config: &Config, home: Home, deadline: Option<Duration>) -> Outcome<Opened> {
        Opened::begin(config, home, deadline, None, false)
    }

    /// The same. `other` may have content of what this device alone has.
    pub fn start_with(
        config: &Config,
        home: Home,
        deadline: Option<Duration>,
        other: Option<&Arc<OtherPlace>>,
    ) -> Outcome<Opened> {
        Opened::begin(config, home, deadline, other, false)
    }

    fn begin(
        config: &Config,
        home: Home,
        deadline: Option<Duration>,
        other: Option<&Arc<OtherPlace>>,
        alone: bool,
    ) -> Outcome<Opened> {
        let options = SharedOptions {
            deadline: match deadline {
                Some(deadline) => deadline,
                None => config.duration("deadline")?,
            },
            alone,
            other: other.cloned(),
        };
        let runtime = session::runtime()?;
        let opening = async { Ok(SharedVolume::open(home, &options).await?) };
        let opened = session::run(&runtime, opening);
        let shared = opened.map_err(|failure| unanswered(failure, false))?;
        Ok(Opened { runtime, shared })
    }

    /// Runs a future until it ends or Ctrl-C comes.
    pub fn run<T>(&self, future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        session::run(&self.runtime, future)
    }

    /// Ends the work: other devices can use what this one has written.
    pub fn close<T>(self, outcome: Outcome<T>, output: &mut Output) -> Outcome<T> {
        if self.is_marked() {
            output.unattested();
        }
        if let Some(why) = self.convicted() {
            output.ends_with(ClientError::from(why).into());
        }
        let has_written = self.has_written();
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
        recovery::tell(self.recovered(), output);
        self.tell_strange(output);
        Ok(self.runtime.block_on(self.shared.close())?)
    }

    /// Warns of entries of this device that this command met first.
    fn tell_strange(&self, output: &Output) {
        let Some(strange) = self.strange_entries() else {
            return;
        };
        let (name, last) = (self.home().name(), strange.last_at);
        let entries = recovery::entries(strange.entries);
        output.warn(&format!(
            "the log has {entries} of this device that it does not remember, the last at {last}. Unless the power was cut \
             here, or a backup of this device was put back, somebody else writes with a copy of it: look with `bulla log \
             {name}`, and remove this device from another one (`bulla share device remove {name} NUMBER`)"
        ));
    }

    /// Ends the work after the server has not answered in time: the command ends then, and waits for nobody.
    fn end_soon(&self, output: &mut Output) -> Outcome<()> {
        recovery::tell(self.recovered(), output);
        let until = Instant::now() + GIVES_UP.min(self.deadline());
        Ok(self.runtime.block_on(self.shared.close_until(until))?)
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
