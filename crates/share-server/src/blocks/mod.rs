//! The block server of a shared volume (SUNDR, seed section 4): STORE, RETRIEVE, DECREF, CSTORE, PSTORE.
//!
//! A block that is stored is durable in the *temporary log* first, where one sync serves all clients and the orderer.
//! Many blocks live shortly: what is dereferenced within a minute is dropped there. The rest moves, in the order in
//! which it came, to the *segments* of a repository in large batches. Where one session stores much at a time, the blocks go to a segment at once,
//! so that their bytes are written once ([decision 0107](../../../../docs/decisions/0107-short-blocks.md)).
//!
//! Clients trust nothing of this. The server checks what protects one client from another: that a block is the one
//! that its handle names, quotas, and who may dereference what. Why it is as it is: `docs/decisions/0044-block-server.md`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`window`] | the rules: who holds a block, when it is dropped, when it moves; without input or output |
//! | `index` | the blocks in the temporary log, in less than 64 bytes of memory each |
//! | `quota` | devices, their sessions, and what they have stored |
//! | [`record`] | records of blocks in the log (`docs/formats/shared-blocks.md`) |
//! | `queue` | batches that wait, and how much of each session |
//! | `gather` | many clients' batches in one frame of the log |
//! | [`storage`] | the server over real storage, each step by a call |
//! | `split` | a batch that is longer than a frame |
//! | `commit` | batches become durable |
//! | `calls` | CSTORE, RETRIEVE, DECREF |
//! | `entries` | how long the log keeps the orderer's entries |
//! | `peek` | what a temporary log holds, read without changing it |
//! | `moving` | from the temporary log to the segments |
//! | `sweeping` | old blocks go out of the segments |
//! | [`server`] | the two threads that call these steps |
//! | [`batch`] | what clients give at once, and what they are told |
//! | [`error`] | [`Error`] |
//!
//! Blocks that nobody needs any more are removed by [`crate::collect`], which asks `sweeping` for it.

pub mod batch;
mod calls;
mod commit;
mod entries;
pub mod error;
mod gather;
mod index;
mod moving;
pub(crate) mod peek;
mod queue;
mod quota;
pub mod record;
pub mod server;
mod split;
pub mod storage;
mod sweeping;
pub mod window;

pub use batch::{Batch, Done, Receipt};
pub use error::{Error, Limit};
pub use index::Position;
pub use moving::Moved;
pub use quota::{Quota, Used};
pub use server::Server;
pub use storage::{Clock, Options, Progress, Storage};

/// A device, by its key. Opaque here: who may open a session is decided before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device(pub [u8; 32]);

/// A session of a device. Blocks are held by sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(u32);
