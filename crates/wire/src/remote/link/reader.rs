//! The receiving half of a connection: from its bytes to answers for those who wait.

use super::*;

/// The receiving half of a connection.
pub(super) struct Reader {
    shared: Arc<Shared>,
    read: OwnedReadHalf,
    buffer: BytesMut,
    greeted: bool,
    long: Option<Long>,
    /// Most bytes of the next read into `buffer`.
    read_bytes: usize,
}

/// A long body that is coming in, past the common buffer.
enum Long {
    /// Into a buffer of its own.
    Whole(Header, BytesMut),
    /// Records of an answer to this request, each into memory of its own.
    Records(Header, Arc<Slot>, IncomingRecords),
}

impl Long {
    /// Where to read next if not into the common buffer.
    fn room(&mut self) -> Option<Limit<&mut BytesMut>> {
        match self {
            Long::Whole(header, body) => {
                let left = header.body_bytes.saturating_sub(body.len());
                Some(body.limit(left))
            }
            Long::Records(_, _, records) => records.room(),
        }
    }
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>, read: OwnedReadHalf) -> Reader {
        Reader {
            shared,
            read,
            buffer: BytesMut::new(),
            greeted: false,
            long: None,
            read_bytes: READ_BUFFER_BYTES,
        }
    }

    /// Reads once and handles complete messages. Cancel-safe: it only waits for the socket.
    pub(super) async fn step(&mut self) -> Result<(), Failure> {
        let read = match self.long.as_mut().and_then(Long::room) {
            Some(mut room) => self.read.read_buf(&mut room).await,
            None => {
                // Reserved only when needed: an idle connection keeps no buffer.
                if self.buffer.capacity() - self.buffer.len() < 4096 {
                    self.buffer.reserve(READ_BUFFER_BYTES);
                }
                let most = self.read_bytes;
                self.read
                    .read_buf(&mut (&mut self.buffer).limit(most))
                    .await
            }
        };
        match read {
            Ok(0) => return Err(Failure::Closed("the server closed the connection".into())),
            Ok(_) => {}
            Err(e) => return Err(Failure::Closed(e.to_string())),
        }
        let now_ms = self.shared.now_ms();
        self.shared.moved_ms.store(now_ms, Ordering::Relaxed);
        self.shared.heard_ms.store(now_ms.max(1), Ordering::Relaxed);
        self.handle(now_ms).map_err(Failure::Bad)
    }

    fn handle(&mut self, now_ms: u64) -> Result<(), Reject> {
        if !self.go_on(now_ms)? {
            return Ok(());
        }
        if !self.greeted {
            let Some(hello) = self.buffer.first_chunk::<HELLO_BYTES>() else {
                return Ok(());
            };
            frame::check_hello(hello, PROTOCOL)?;
            self.buffer.advance(HELLO_BYTES);
            self.greeted = true;
        }
        while let Some(header) = Header::peek(&self.buffer, MAX_ANSWER_BYTES)? {
            let have = self.buffer.len() - HEADER_BYTES;
            if have >= header.body_bytes {
                let mut message = self.buffer.split_to(HEADER_BYTES + header.body_bytes);
                let body = Body {
                    bytes: message.split_off(HEADER_BYTES).freeze(),
                    shared: true,
                };
                self.shared.check(&header)?;
                if header.body_bytes > 0 {
                    self.read_bytes = READ_BUFFER_BYTES;
                }
                self.shared.deliver(header, body, now_ms)?;
                continue;
            }
            // Checked before the body is read.
            self.shared.check(&header)?;
            if header.body_bytes > OWN_BUFFER_BYTES {
                self.buffer.advance(HEADER_BYTES);
                self.begin_long(header)?;
                // More of it is to come.
                self.go_on(now_ms)?;
            } else {
                self.read_bytes = READ_BUFFER_BYTES;
            }
            break;
        }
        Ok(())
    }

    /// Prepares for a long body, of which a part may be in the buffer.
    fn begin_long(&mut self, header: Header) -> Result<(), Reject> {
        self.long = Some(if header.kind == kind::RECORDS {
            let slot = self.shared.begin(&header)?;
            Long::Records(header, slot, IncomingRecords::new(header.body_bytes))
        } else {
            let mut body = BytesMut::with_capacity(header.body_bytes);
            body.put_slice(&self.buffer);
            self.buffer.clear();
            Long::Whole(header, body)
        });
        Ok(())
    }

    /// Handles what has come of a long body; false while more of it is to come.
    fn go_on(&mut self, now_ms: u64) -> Result<bool, Reject> {
        match &mut self.long {
            None => return Ok(true),
            Some(Long::Whole(header, body)) => {
                if body.len() < header.body_bytes {
                    return Ok(false);
                }
                let body = Body {
                    bytes: std::mem::take(body).freeze(),
                    shared: false,
                };
                self.shared.deliver(*header, body, now_ms)?;
            }
            Some(Long::Records(header, slot, records)) => {
                while let Some((handle, frame)) = records.next(&mut self.buffer)? {
                    slot.take_record(handle, frame)?;
                }
                self.read_bytes = records.read_bytes(READ_BUFFER_BYTES);
                if !records.is_complete() {
                    return Ok(false);
                }
                self.shared.ended(slot, header, now_ms);
            }
        }
        self.long = None;
        Ok(true)
    }
}
