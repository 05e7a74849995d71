//! Files of a shared volume: several devices with the product's machines and formats over a network in memory, whose
//! server keeps bodies and blocks and gives them out when they are asked for.
//!
//! | module | what lives there |
//! |---|---|
//! | `world` | keys, policies, randomness |
//! | `net` | devices, a server, and what travels between them |
//! | `asks` | calls in short |
//! | `kernel` | the same calls on a directory of this machine |
//! | `posix` | random calls of several devices have the kernel's answers |
//! | `calls` | single calls |
//! | `conflicts` | devices that change the same things at a time |
//! | `fetching` | missing bodies and blocks, a full shelf, restarts |
//! | `holds` | locks of programs |
//! | `hostile` | members that write what no client writes |
//! | `newer` | entries of a later format |
//! | `people` | decisions about members, permission |
//! | `folds` | folds |
//! | `journal` | bytes of calls |
//! | `times` | times of files and directories |
//! | `turns` | many devices that change one file |
//! | `writeback` | what programs have open and have changed, explored |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod asks;
mod calls;
mod conflicts;
mod fetching;
mod folds;
mod holds;
mod hostile;
mod journal;
mod kernel;
mod net;
mod newer;
mod people;
mod posix;
mod replacing;
mod times;
mod turns;
mod world;
mod writeback;
