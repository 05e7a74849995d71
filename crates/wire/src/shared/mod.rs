//! The messages between a device and the server of a shared volume, and a connection to it (design `share.md`).
//!
//! One connection carries the ordering protocol, the block server's calls, policies and the mailbox for admissions.
//! It runs inside TLS 1.3. The server's key is the orderer's, without any certificate, so a client that knows the
//! volume's policy accepts no other server. A device proves its key in its first message, by a signature over what
//! only the two ends of this TLS session know. None of this is trusted for more than availability, quotas and privacy:
//! what devices read is proved by signatures and hashes. Byte-exact in `docs/formats/shared-protocol.md`; reasons in
//! decision 0046. Relies on [`crate::frame`] for the framing, on [`crate::session`] for both ends, and on `trust_shared` for what is signed.
//!
//! | module | what it holds |
//! |---|---|
//! | [`enter`] | the first message: which volume, which device |
//! | [`request`] | the other messages of a client |
//! | [`delivery`] | what the server pushes: leaves, notes, attests |
//! | [`terms`] | what holds for a device at this server |
//! | [`answer`] | what the server answers |
//! | [`address`] | where a server is, as users write it |
//! | [`link`] | a client's connection |
//! | [`usage`] | what a device has used, and what is left |
//! | [`window`] | how many deliveries may be under way |

pub mod address;
pub mod answer;
pub mod delivery;
pub mod enter;
pub mod link;
pub mod request;
pub mod terms;
pub mod usage;
pub mod window;

pub use address::ServerAddress;
pub use delivery::{Delivery, SentLeaf};
pub use link::{Deliveries, Link, LinkError, LinkOptions};
pub use request::Request;
pub use terms::Terms;
pub use usage::Usage;
pub use window::{WINDOW, Window};

use crate::refusal::ErrorCode;

/// Number of the protocol in the hello.
pub const PROTOCOL: u8 = 2;
/// Port of `bulla://host` when none is given.
pub const DEFAULT_PORT: u16 = 28553;

/// The request id of messages that belong to the session and have no answer.
pub const SESSION_ID: u32 = 1;

/// Most leaves in a delivery, or in an answer to LEAVES.
pub const MAX_LEAVES: usize = 256;
/// Most bytes of one delivery, its parts together.
pub const MAX_DELIVERY_BYTES: usize = 24 << 20;
/// A server ends a part that has so many bytes; the leaf or Attest that reaches it is the last one.
pub const PART_BYTES: usize = 256 << 10;
/// Longest part, and longest answer to LEAVES or POLICIES: [`PART_BYTES`], and a leaf or a policy that reaches beyond.
pub const MAX_PART_BYTES: usize = 2 << 20;
/// Most positions in a BODIES, and handles in a RETRIEVE, CSTORE or DECREF.
pub const MAX_NAMES: usize = 1024;
/// Most bytes of records in one STORE or PSTORE: a block of any length fits.
pub const MAX_STORE_BYTES: usize = 2 << 20;
/// Longest message in a mailbox.
pub const MAX_LETTER_BYTES: usize = 512;
/// Longest checkpoint with its note and signatures.
pub const MAX_CHECKPOINT_BYTES: usize = 8 << 10;
/// Most checkpoints that a server keeps: one of each checkpointer, and the newest that is whole.
pub const MAX_CHECKPOINTS: usize = 33;
/// Longest wait of a TAKE.
pub const MAX_TAKE_MS: u32 = 10_000;

/// Types of messages; an answer has the high bit.
pub mod kind {
    /// Request: the volume and the device; the first message.
    pub const ENTER: u8 = 0x10;
    /// Session: begin deliveries after a note.
    pub const OPEN: u8 = 0x11;
    /// Session: order an entry.
    pub const ENTRY: u8 = 0x12;
    /// Session: put a mark into the log.
    pub const MARK: u8 = 0x13;
    /// Session: an Attest for the others.
    pub const ATTEST: u8 = 0x14;
    /// Session: ask a device for an Attest.
    pub const ASK: u8 = 0x15;
    /// Session: one delivery was taken.
    pub const NEXT: u8 = 0x16;
    /// Request: leaves by position.
    pub const LEAVES: u8 = 0x18;
    /// Request: bodies of entries by position.
    pub const BODIES: u8 = 0x19;
    /// Request: keep these blocks; they may be dereferenced soon.
    pub const STORE: u8 = 0x1a;
    /// Request: keep these blocks; nothing is known of their life.
    pub const PSTORE: u8 = 0x1b;
    /// Request: blocks by handle.
    pub const RETRIEVE: u8 = 0x1c;
    /// Request: which of these blocks are there; they stay.
    pub const CSTORE: u8 = 0x1d;
    /// Request: this device refers to these blocks no more.
    pub const DECREF: u8 = 0x1e;
    /// Request: policies from a number on.
    pub const POLICIES: u8 = 0x20;
    /// Request: put a message into a mailbox.
    pub const POST: u8 = 0x21;
    /// Request: wait for a message in a mailbox.
    pub const TAKE: u8 = 0x22;
    /// Request: an answer.
    pub const PING: u8 = 0x23;
    /// Request: keep a checkpoint for devices that begin with one.
    pub const CHECKPOINT: u8 = 0x24;
    /// Request: the checkpoints that are kept.
    pub const CHECKPOINTS: u8 = 0x25;

    /// Request: what the device has used, and what is left.
    pub const USAGE: u8 = 0x26;

    /// Answer to USAGE.
    pub const USED: u8 = 0x9a;
    /// Answer to OPEN.
    pub const OPENED: u8 = 0x99;
    /// Answer to ENTER.
    pub const WELCOME: u8 = 0x90;
    /// Answer to LEAVES; part of a delivery.
    pub const LEAVES_PART: u8 = 0x91;
    /// Part of a delivery: Attests.
    pub const ATTESTS: u8 = 0x92;
    /// End of a delivery.
    pub const DELIVERY: u8 = 0x93;
    /// Part of the answer to BODIES.
    pub const BODIES_PART: u8 = 0x94;
    /// Answer to CSTORE.
    pub const HAVE: u8 = 0x95;
    /// Answer to POLICIES.
    pub const POLICIES_PART: u8 = 0x96;
    /// Answer to TAKE.
    pub const LETTER: u8 = 0x97;
    /// Answer to CHECKPOINTS.
    pub const CHECKPOINTS_PART: u8 = 0x98;
    /// End of an answer.
    pub use crate::mirror::kind::DONE;
    /// Part of the answer to RETRIEVE.
    pub use crate::mirror::kind::RECORDS;
    /// Answer to any request that the server refuses.
    pub use crate::refusal::ERROR;
}

/// The server does not have this volume.
pub const NO_VOLUME: ErrorCode = crate::mirror::NO_VOLUME;
/// The device is no member of the volume, at this server.
pub const NOT_MEMBER: ErrorCode = ErrorCode(128);
/// Only members may ask for this.
pub const GUEST: ErrorCode = ErrorCode(129);
/// A signature is bad, or the message says that it is another device's.
pub const FORGED: ErrorCode = ErrorCode(130);
/// The client's note names no prefix of this log, and is not signed by this orderer.
pub const OTHER_LOG: ErrorCode = ErrorCode(131);
/// The server was restored from a copy: the client has seen more of the log than the server.
pub const RESTORED: ErrorCode = ErrorCode(132);
/// The device has used up its quota.
pub const QUOTA: ErrorCode = ErrorCode(133);
/// The server has no room.
pub const FULL: ErrorCode = ErrorCode(134);
/// A block is not the one that its handle names.
pub const WRONG_BLOCK: ErrorCode = ErrorCode(135);
/// The device has opened another connection since.
pub const REPLACED: ErrorCode = ErrorCode(136);
/// No member waits at this mailbox.
pub const NO_MAILBOX: ErrorCode = ErrorCode(137);
/// Another message is in this slot of the mailbox.
pub const OCCUPIED: ErrorCode = ErrorCode(138);
/// The client's note is of another epoch of the log.
pub const OTHER_EPOCH: ErrorCode = ErrorCode(139);
/// No checkpointer of the volume signed the checkpoint, or it is of another log.
pub const NO_CHECKPOINT: ErrorCode = ErrorCode(140);
