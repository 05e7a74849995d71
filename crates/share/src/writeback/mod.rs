//! What the programs of one device have open, and what they changed that no log has yet (design *Share*, Mount). State
//! machines without input, output, clock and randomness: a mount does what they say, and tells them what came of it.
//! `tests/files/writeback` explores them with the real engine, orderer and block server.
//!
//! | file | what lives there |
//! |---|---|
//! | `cached` | one file: its newest version, the changes over it, and who waits |
//! | `effect` | what the state machine of a file asks for, and what it is told |
//! | `commit` | its changes on their way into the log |
//! | `nodes` | the files that the kernel knows, and the names that led to them |
//! | `opening` | whether the name that led to a file still does |
//! | `overlay` | which bytes are local, which are those of the version below, which are zeros |

mod cached;
mod commit;
mod effect;
mod nodes;
mod opening;
mod overlay;

pub use cached::{Cached, Changed, Local, Plan};
pub use effect::{Effect, Found, Kinds, NotSent, NotStored, Taken, Timer};
pub use nodes::{Node, Nodes, ROOT, lock};
pub use opening::{Opening, Opens};
pub use overlay::{From, Moved, Overlay};
