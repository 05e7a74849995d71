//! Locks of programs on the files of a mount, flock(2) and fcntl(2) (design *Share*, Mount, Locks of programs). State
//! machines without input, output and clock: the mount gives them what programs ask for, makes the calls of the log that they
//! want, and tells them what came of it.
//!
//! A device settles its own programs among themselves. What they have together it holds in the log, where other devices
//! meet it ([`Call::Hold`](crate::files::Call::Hold)). What it holds already, it gives to its programs without asking.
//!
//! | file | what lives there |
//! |---|---|
//! | `table` | which program has which bytes of a file |
//! | `file` | who waits for bytes of a file, and what the device holds of it in the log |
//! | `device` | the locks of all files of a mount |
//! | `known` | how long this device has known which prefix of the log |

mod device;
mod file;
mod known;
mod table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_loss;

pub use device::{Key, Locks, Row};
pub use file::{Answer, Ask, Came, Denied, Granted, Request};
pub use known::{Known, LAPSES, RENEWS};
pub use table::{Owned, Table, clash};
