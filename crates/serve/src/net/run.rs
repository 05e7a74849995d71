//! One connection on a stream: many requests are read at a time and answers leave in as few writes
//! as possible.
//!
//! One task for each connection. It does not read while answers wait to be written, so a client that does
//! not read slows down only itself. Works on any stream; one that buffers (TLS) is flushed after each write.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use wire::refusal::ErrorCode;

use crate::net::account::BUSY_STEP;
use crate::net::connection::{Connection, READ_BUFFER_BYTES};
use crate::net::end::End;
use crate::net::outbox::Outbox;
use crate::net::service::{Mail, Service};

/// A stream of bytes in both directions: TCP, a Unix socket, TLS over either.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for T {}

impl<S: Service> Connection<S> {
    /// Serves until the end.
    pub(crate) async fn run(
        mut self,
        stream: &mut impl Stream,
        mut stop: watch::Receiver<bool>,
    ) -> End {
        let end = self.serve(stream, &mut stop).await;
        let parting = match &end {
            End::Malformed(why) => Some((ErrorCode::MALFORMED, why.to_string())),
            End::Unsupported(_) => Some((ErrorCode::UNSUPPORTED, spoken(S::PROTOCOL))),
            End::Stopping => Some((ErrorCode::STOPPING, "the server stops".to_owned())),
            End::Unanswered => Some((ErrorCode::STORAGE, "the service does not answer".to_owned())),
            _ => None,
        };
        if let Some((code, text)) = parting {
            self.outbox.error(0, code, &text);
            // Best effort: the connection ends either way.
            let _ = self.flush(stream).await;
        }
        end
    }

    async fn serve(&mut self, stream: &mut impl Stream, stop: &mut watch::Receiver<bool>) -> End {
        let (first, _) = self.deadline();
        let mut clock = pin!(sleep_until(first));
        // Subscribed once, because new waiters for each request would contend with each other.
        let mut stopped = pin!(async move {
            // An error means that the server is gone, which is a stop as well.
            let _ = stop.wait_for(|stop| *stop).await;
        });
        let (mut stopping, mut finished) = (false, false);
        loop {
            if let Err(end) = self.work(stream).await {
                return end;
            }
            if self.outbox.left_bytes() > 0 && self.is_greeted() {
                if let Err(end) = self.flush(stream).await {
                    return end;
                }
                continue;
            }
            let quiet = self.mail.in_flight == 0;
            // What came before the end of the stream is answered, also if it rests.
            if finished && quiet && self.rests_until().is_none() {
                return End::Closed;
            }
            if stopping && quiet {
                return End::Stopping;
            }
            if let Err(end) = self.arm(clock.as_mut()) {
                return end;
            }
            self.shrink();
            let has_room = self.may_read();
            let may_read = !finished && self.may_start() && has_room;
            let rests = self.rests_until();
            tokio::select! {
                read = read(stream, &mut self.buffer), if may_read => match read {
                    Ok(0) => finished = true,
                    Ok(n) => self.host.resources.counters().received_bytes.add(n as u64),
                    Err(e) => return End::Broken(e),
                },
                () = self.mail.ready(), if self.mail.expected().is_some() => {}
                () = clock.as_mut() => {}
                () = stopped.as_mut(), if !stopping => stopping = true,
                () = async { sleep_until(rests.unwrap_or_else(Instant::now)).await }, if rests.is_some() => {}
                // Inside an async block, so that the timer is made only when this branch is polled.
                () = async { sleep(BUSY_STEP).await }, if !has_room => self.account.make_room(),
            }
        }
    }

    /// Answers whole requests until enough is gathered.
    async fn work(&mut self, stream: &mut impl Stream) -> Result<(), End> {
        self.take_mail()?;
        let limit = self.host.resources.limits().gather_bytes;
        while self.may_start() && self.outbox.left_bytes() < limit {
            let Some(header) = self.next_request()? else {
                break;
            };
            if !self.account.has_room() {
                // Its own answers may fill its share, and nothing else here delivers them.
                if self.mail.in_flight > 0 {
                    break;
                }
                if !self.room(stream).await? {
                    self.refuse_busy(header);
                    continue;
                }
            }
            self.answer(header)?;
            if std::mem::take(&mut self.hints.costly) {
                // So a client that sends many of them gives all others a turn in between.
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Waits for other answers to leave memory; false when too much stays.
    async fn room(&mut self, stream: &mut impl Stream) -> Result<bool, End> {
        if self.outbox.left_bytes() > 0 {
            self.flush(stream).await?;
        }
        Ok(self.account.wait_for_room().await)
    }

    /// Writes all that is gathered, as long as the client takes it at the least pace.
    async fn flush(&mut self, stream: &mut impl Stream) -> Result<(), End> {
        let total = self.outbox.left_bytes();
        self.settle();
        loop {
            // Tried once before a timer is made, because the stream mostly takes everything at once.
            let (outbox, mail) = (&self.outbox, &self.mail);
            let limits = self.host.resources.limits();
            let mut step = poll_fn(|cx| Poll::Ready(poll_write(outbox, mail, stream, cx))).await;
            if step.is_pending() {
                let window = self.pace.wait(limits);
                self.account.owes(self.pace.owes_since());
                let written = poll_fn(|cx| poll_write(outbox, mail, stream, cx));
                tokio::select! {
                    written = timeout_at(window, written) => {
                        if let Ok(written) = written {
                            step = Poll::Ready(written);
                        }
                    }
                    () = self.account.must_end() => {
                        let why = "does not read its answers, and others wait for room";
                        return Err(End::TooSlow(why));
                    }
                }
                self.account.owes(None);
            }
            let mut is_flushed = false;
            if let Poll::Ready(wrote) = step {
                let wrote = wrote?;
                self.pace.took(wrote, limits);
                self.outbox.advance(wrote);
                is_flushed = wrote == 0;
            }
            if !self.pace.keeps_up(self.host.resources.limits()) {
                return Err(End::TooSlow("does not read its answers"));
            }
            if is_flushed {
                break;
            }
        }
        self.shrink();
        self.settle();
        self.host.resources.counters().sent_bytes.add(total as u64);
        self.last_active = Instant::now();
        Ok(())
    }
}

/// What a client of another protocol is told.
fn spoken(protocol: u8) -> String {
    format!("this server speaks protocol {protocol}")
}

/// Writes once; when nothing is left, flushes the stream and gives 0.
fn poll_write(
    outbox: &Outbox,
    mail: &Mail,
    stream: &mut impl Stream,
    cx: &mut Context<'_>,
) -> Poll<Result<usize, End>> {
    let mut stream = Pin::new(stream);
    if let Some(mailbox) = mail.expected()
        && mailbox.poll_overrun(cx).is_ready()
    {
        return Poll::Ready(Err(End::TooSlow("does not read its pushes")));
    }
    if outbox.left_bytes() == 0 {
        return stream.poll_flush(cx).map_ok(|()| 0).map_err(End::Broken);
    }
    let wrote = outbox.with_slices(|slices| stream.as_mut().poll_write_vectored(cx, slices));
    match wrote {
        Poll::Ready(Ok(0)) => {
            let error = std::io::ErrorKind::WriteZero.into();
            Poll::Ready(Err(End::Broken(error)))
        }
        other => other.map_err(End::Broken),
    }
}

/// Reads once, and makes room in the buffer first. Cancel-safe.
async fn read(stream: &mut impl Stream, buffer: &mut BytesMut) -> std::io::Result<usize> {
    if buffer.capacity() == buffer.len() {
        buffer.reserve(READ_BUFFER_BYTES);
    }
    stream.read_buf(buffer).await
}
