//! Several programs of one user use one volume: one process runs the engine, the others reach it over a socket in the
//! home (decision 0053; bytes in [`crate::client::local`]).
//!
//! A client has a queue of commands, a view that it shows, and a line over which blocks go. An engine of its own serves
//! these three, or a [`guest`] does, which passes them to the process that has the engine. So nothing above knows which.
//! When that process ends, the guest's seat is taken again: by an engine of its own, or as a guest of another process.
//!
//! | module | what lives there |
//! |---|---|
//! | `socket` | where the socket is, who may connect, frames |
//! | `host` | the process with the engine answers others |
//! | `guest` | the others |
//! | `line` | blocks over the socket |
//! | `plug` | a client's ends of what an engine serves |
//! | `seat` | who becomes what, and again when a process ends |

pub(super) mod guest;
pub(super) mod host;
mod line;
pub(super) mod plug;
pub(super) mod seat;
mod socket;
#[cfg(test)]
mod tests;
