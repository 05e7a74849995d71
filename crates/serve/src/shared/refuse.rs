//! What a client is told when the host refuses. The text names no path and no key of the server.

use bytes::{BufMut, Bytes, BytesMut};
use ordering::orderer::Turned;
use share_server::blocks;
use share_server::host::HostError;
use share_server::host::mailbox::Refused;
use trust::Reject;
use wire::frame::HEADER_BYTES;
use wire::refusal::{ErrorCode, put_error};
use wire::shared::{
    FORGED, FULL, NO_CHECKPOINT, NO_MAILBOX, NOT_MEMBER, OCCUPIED, OTHER_EPOCH, OTHER_LOG, QUOTA,
    REPLACED, RESTORED, WRONG_BLOCK,
};

/// A refusal: code and text.
pub(crate) type Told = (ErrorCode, String);

/// What a client is told about an error. What only the operator may know is logged.
pub(crate) fn told(error: &HostError) -> Told {
    match error {
        HostError::Turned(turned) => (turned_code(*turned), error.to_string()),
        HostError::NoMember => (NOT_MEMBER, error.to_string()),
        HostError::Superseded => (REPLACED, error.to_string()),
        HostError::NoLeaf { .. } => (ErrorCode::MALFORMED, error.to_string()),
        HostError::Blocks(error) => told_of_blocks(error),
        HostError::Checkpoint(_) => (NO_CHECKPOINT, error.to_string()),
        HostError::Mailbox(refused) => (mailbox_code(*refused), refused.to_string()),
        HostError::Restored { .. } => {
            let text = "the server's log was restored from a copy, and signs nothing any more";
            (RESTORED, text.to_owned())
        }
        HostError::Stopped => (ErrorCode::STOPPING, error.to_string()),
        other => {
            tracing::warn!(error = %other, "a request failed");
            let text = "the server's disk or directory failed";
            (ErrorCode::STORAGE, text.to_owned())
        }
    }
}

/// The same for an error of the block server.
pub(crate) fn told_of_blocks(error: &blocks::Error) -> Told {
    let code = match error {
        blocks::Error::WrongBlock { .. } => WRONG_BLOCK,
        blocks::Error::Quota { .. } => QUOTA,
        blocks::Error::NoSession => REPLACED,
        blocks::Error::TooManyDevices => FULL,
        // The cause may name a path.
        blocks::Error::Full { .. } => return (FULL, "the server has no room".to_owned()),
        blocks::Error::TooLarge { .. } => ErrorCode::MALFORMED,
        blocks::Error::Stopped => ErrorCode::STOPPING,
        blocks::Error::Damaged { .. } | blocks::Error::Late { .. } => ErrorCode::STORAGE,
        blocks::Error::Log(_) | blocks::Error::Store(_) => {
            tracing::warn!(%error, "the block server failed");
            return (ErrorCode::STORAGE, "the server's disk failed".to_owned());
        }
    };
    (code, error.to_string())
}

fn turned_code(turned: Turned) -> ErrorCode {
    match turned {
        Turned::NoSession => ErrorCode::MALFORMED,
        Turned::Busy => ErrorCode::BUSY,
        Turned::Quota => QUOTA,
        Turned::Forged => FORGED,
        Turned::OtherEpoch => OTHER_EPOCH,
        Turned::OtherLog => OTHER_LOG,
        Turned::Restored => RESTORED,
    }
}

fn mailbox_code(refused: Refused) -> ErrorCode {
    match refused {
        Refused::NoBox => NO_MAILBOX,
        Refused::Occupied => OCCUPIED,
        Refused::Malformed => ErrorCode::MALFORMED,
        Refused::Full => ErrorCode::BUSY,
    }
}

/// The client broke the protocol: the connection ends.
pub(crate) fn malformed(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "request",
        why,
    }
}

/// The body of an ERROR that is pushed.
pub(crate) fn error_body(code: ErrorCode, text: &str) -> Bytes {
    let mut message = BytesMut::new();
    put_error(&mut message, 0, code, text);
    let mut body = BytesMut::new();
    body.put_slice(message.get(HEADER_BYTES..).unwrap_or_default());
    body.freeze()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use wire::refusal::Refusal;

    #[test]
    fn client_is_told_no_path_of_the_server() {
        let error = HostError::NotShared {
            path: "/srv/secret".into(),
        };
        let (code, text) = told(&error);
        assert_eq!(code, ErrorCode::STORAGE);
        assert!(!text.contains("secret"));
        let cause = Arc::from("/srv/secret is full");
        let (code, text) = told(&HostError::Blocks(blocks::Error::Full { cause }));
        assert_eq!(code, FULL);
        assert!(!text.contains("secret"));
        let error = HostError::Restored {
            why: Arc::from("a note"),
        };
        assert_eq!(told(&error).0, RESTORED);
    }

    #[test]
    fn pushed_error_has_the_form_of_an_answer() {
        let refusal = Refusal::decode(&error_body(REPLACED, "gone")).unwrap();
        assert_eq!((refusal.code, &*refusal.text), (REPLACED, "gone"));
    }
}
