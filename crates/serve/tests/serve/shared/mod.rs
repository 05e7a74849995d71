//! The server of a shared volume on real sockets: what devices get, what guests may do, and what hostile clients cost.

mod admission;
mod blocks;
mod client;
mod crowd;
mod device;
mod hostile;
mod joining;
mod limits;
mod ordering;
mod promise;
mod volume;
