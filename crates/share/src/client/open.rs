//! From a home to a client.

use std::sync::Arc;
use std::time::Instant;

use reader::Blocks;
use store::Replica;
use store::mirrors::Mirrors;
use tokio::sync::{Semaphore, mpsc, watch};
use trust_shared::effect::Volume as Fixed;
use trust_shared::genesis::Policies;

#[cfg(test)]
use super::connection::Dial;
#[cfg(test)]
use super::core::Core;
#[cfg(test)]
use super::driver::Driver;
use super::driver::Shown;
use super::link::Offered;
use super::neighbour::plug::Plug;
use super::neighbour::seat::{self, Seat};
use super::owed::Before;
use super::own::Own;
use super::place::{ServerBlocks, Sink, Taken};
use super::start::seen;
use super::status::View;
use super::{Client, ClientError, Inner, Options};
#[cfg(test)]
use crate::files::Shelf;
use crate::home::Home;

impl Client {
    /// Opens a home on this runtime: the engine runs here, or in another process of this user that has the home open
    /// already. When that process ends, the next one runs it (decision 0053). The engine connects to its server, again
    /// and again. Waits until the deadline for a process that has the home open and answers nobody.
    ///
    /// # Errors
    /// [`ClientError::Home`], [`ClientError::Disk`], [`ClientError::Unsupported`], [`ClientError::OtherBuild`]. A server
    /// that does not answer is no error here: [`Client::running`] waits for it.
    pub async fn start(
        home: &Home,
        options: Options,
        deadline: Instant,
    ) -> Result<Client, ClientError> {
        let offered = Offered::default();
        let seat = seat::take(home, &options, &offered, deadline).await?;
        let view = match &seat {
            Seat::Own { core, .. } => seen(core),
            Seat::Guest(joined) => joined.view.clone(),
        };
        let policies = home.policies()?;
        let own = Own::of(home.directory().to_owned(), policies.chain().hasher());
        let (client, plug) = Client::new(
            policies,
            (home.server(), Some(own)),
            &options,
            view,
            offered,
        );
        seat.owes(&plug.before);
        let engine = Arc::downgrade(&client.0);
        let hosting = Arc::clone(&client.0.hosting);
        // Before this returns: who is told that it runs can connect.
        seat.lend(home, &engine, &hosting);
        let keeping = seat::keep(seat, plug, home.clone(), options, engine, hosting);
        tokio::spawn(keeping);
        Ok(client)
    }

    /// Runs an engine on this runtime, for this process only.
    #[cfg(test)]
    pub(super) fn run(
        core: Core,
        policies: Policies,
        shelf: Arc<Shelf>,
        (dial, offered): (Arc<dyn Dial>, Offered),
        name: &str,
        options: &Options,
    ) -> Client {
        let (client, plug) = Client::new(policies, (name, None), options, seen(&core), offered);
        plug.before.set(core.before());
        let shared = (plug.hasher, plug.near);
        let driver = Driver::new(core, plug.commands, dial, plug.shown, shelf, shared);
        tokio::spawn(driver.with_absence(options.away).run());
        client
    }

    /// A client, and what serves it.
    pub(super) fn new(
        policies: Policies,
        (name, own): (&str, Option<Arc<Own>>),
        options: &Options,
        view: View,
        offered: Offered,
    ) -> (Client, Plug) {
        let volume = policies.chain().volume();
        let hasher = policies.chain().hasher();
        let (queue, commands) = mpsc::unbounded_channel();
        let (view, views) = watch::channel(view);
        let (line, lines) = watch::channel(None);
        let place: Arc<dyn Replica> = Arc::new(ServerBlocks {
            name: name.to_owned(),
            lines: lines.clone(),
            view: views.clone(),
            own: own.clone(),
        });
        let mirrors = Arc::new(Mirrors::new(vec![place]));
        let cache = options.cache.clone();
        let blocks = Blocks::new(hasher.clone(), mirrors, options.cache_bytes, cache);
        let plug = Plug {
            commands,
            queue: queue.downgrade(),
            shown: Shown { view, line },
            hasher: hasher.clone(),
            offered: Arc::clone(&offered),
            own: own.clone(),
            near: Arc::default(),
            before: Before::default(),
        };
        let client = Client(Arc::new(Inner {
            before: plug.before.clone(),
            near: plug.near.clone(),
            offered,
            volume,
            root: Fixed::new(volume, hasher.clone()).root,
            hasher,
            policies,
            commands: queue,
            view: views,
            places: Semaphore::new(options.calls.max(1)),
            tickets: Default::default(),
            blocks: Arc::new(blocks),
            own,
            sink: Sink {
                name: name.into(),
                lines,
                patience: options.link.answer_timeout,
                taken: Taken::begin(),
            },
            room: Default::default(),
            hosting: Default::default(),
        }));
        (client, plug)
    }
}
