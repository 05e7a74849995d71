//! A connection that was just accepted. Its first request has mostly arrived already, so it is read and
//! answered by plain system calls, before the socket is registered with the runtime.

use std::os::fd::OwnedFd;

use bytes::BytesMut;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::time::Instant;
use trust::Reject;

use crate::net::connection::{Connection, READ_BUFFER_BYTES};
use crate::net::end::End;
use crate::net::service::Service;

/// The state of a client's socket after one read.
pub(crate) enum Met {
    /// The connection is over.
    End(End),
    /// Nothing has come.
    Silent,
    /// The client has everything it asked for and will probably leave.
    Served,
    /// There may be more.
    Stays,
}

impl<S: Service> Connection<S> {
    /// Reads once and answers what has come, without waiting.
    pub(crate) fn meet(&mut self, socket: &OwnedFd) -> Met {
        let mut came = [0; READ_BUFFER_BYTES];
        let read = match rustix::net::recv(socket, &mut came, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Met::End(End::Closed),
            Ok((read, _)) => read,
            Err(Errno::AGAIN | Errno::INTR) => return Met::Silent,
            Err(e) => return Met::End(End::Broken(e.into())),
        };
        let counters = self.host.resources.counters();
        counters.received_bytes.add(read as u64);
        self.buffer
            .extend_from_slice(came.get(..read).unwrap_or_default());
        self.hints.likely_last = false;
        if let Err(why) = self.answer_at_once() {
            // An ordinary connection tells the client.
            self.rejected = Some(why);
            return Met::Stays;
        }
        if let Err(end) = self.write_at_once(socket) {
            return Met::End(end);
        }
        let quiet = self.buffer.is_empty()
            && self.outbox.left_bytes() == 0
            && self.mail.expected().is_none();
        if quiet {
            self.buffer = BytesMut::new();
        }
        if self.hints.likely_last && quiet {
            Met::Served
        } else {
            Met::Stays
        }
    }

    fn answer_at_once(&mut self) -> Result<(), Reject> {
        while self.account.has_room()
            && !self.hints.costly
            && self.may_start()
            && self.outbox.left_bytes() < self.host.resources.limits().gather_bytes
        {
            match self.next_request()? {
                Some(header) => self.answer(header)?,
                None => break,
            }
        }
        Ok(())
    }

    fn write_at_once(&mut self, socket: &OwnedFd) -> Result<(), End> {
        let total = self.outbox.left_bytes();
        if total == 0 || !self.is_greeted() {
            return Ok(());
        }
        let wrote = self.outbox.with_slices(|s| rustix::io::writev(socket, s));
        match wrote {
            Ok(n) => self.outbox.advance(n),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => return Err(End::Broken(e.into())),
        }
        let left = self.outbox.left_bytes();
        self.settle_for(left);
        let sent = &self.host.resources.counters().sent_bytes;
        sent.add((total - left) as u64);
        self.last_active = Instant::now();
        Ok(())
    }
}
