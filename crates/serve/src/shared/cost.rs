//! What a message counts: its bytes, but at least so much for itself and for each block, body or leaf that it has or asks
//! for (shared-protocol.md, *How much a device may do*). A client that has done too much rests: nothing is read of it. So
//! many small messages cost as much as a few long ones, and a flood of them waits in the client.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use share_server::host::rate::{Meter, Rate};
use wire::shared::request::Request;
use wire::shared::terms::{MESSAGE_COST_BYTES, NAMED_COST_BYTES};

/// What a guest may send: letters, and questions for policies.
const GUEST: Rate = Rate {
    per_second: 64 << 20,
    burst: 64 << 20,
};

/// What a message with a body of this length counts when it has come. NEXT counts nothing: there are as many as
/// deliveries.
pub(crate) fn of(request: &Request, body_bytes: usize) -> u64 {
    let named = match request {
        Request::Next => return 0,
        Request::Store(records) | Request::Pstore(records) => records.len(),
        Request::Cstore(handles) | Request::Decref(handles) => handles.len(),
        // They count what they are answered.
        _ => 0,
    };
    let bytes = (body_bytes as u64).max(MESSAGE_COST_BYTES);
    bytes.max((named as u64).saturating_mul(NAMED_COST_BYTES))
}

/// What a part of an answer counts that looked for so many blocks, bodies or leaves.
pub(crate) fn of_answer(bytes: usize, named: usize) -> u64 {
    (bytes as u64).max((named as u64).saturating_mul(NAMED_COST_BYTES))
}

/// The account of a guest.
pub(crate) struct GuestMeter(Mutex<Meter>);

impl GuestMeter {
    pub(crate) fn new() -> GuestMeter {
        GuestMeter(Mutex::new(Meter::new(GUEST, Instant::now())))
    }

    /// Counts a message. Gives how long the guest rests.
    pub(crate) fn pay(&self, bytes: u64) -> Duration {
        let mut meter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        meter.pay(bytes, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust::Handle;

    #[test]
    fn small_messages_and_many_names_count_more_than_their_bytes() {
        assert_eq!(of(&Request::Ping, 0), MESSAGE_COST_BYTES);
        assert_eq!(of(&Request::Next, 0), 0);
        let handles = vec![Handle::from_bytes([1; 32]); 1024];
        let asked = Request::Cstore(handles.clone());
        assert_eq!(of(&asked, 32 * 1024), 1024 * NAMED_COST_BYTES);
        let read = Request::Retrieve(handles);
        assert_eq!(of(&read, 32 * 1024), MESSAGE_COST_BYTES);
        assert_eq!(of(&Request::Store(Vec::new()), 2 << 20), 2 << 20);
        assert_eq!(of_answer(100, 3), 3 * NAMED_COST_BYTES);
        assert_eq!(of_answer(1 << 20, 3), 1 << 20);
    }
}
