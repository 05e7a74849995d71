//! The state machines of the ordering protocol, explored: every choice of a server that lies, crashes of devices, and
//! what programs may see (design `share.md`, decision 0040).
//!
//! | module | what lives there |
//! |---|---|
//! | `protocol`, `chain`, `wide` | entries, marks, attests, logs, with symbolic hashes and signatures |
//! | `symbolic` | hashes, signatures and randomness for the product's machines |
//! | `engine` | the interfaces of what is explored: a device, an ordering server |
//! | `device`, `server` | the product's client and orderer, each with a disk, behind these interfaces |
//! | `rules` | the rules that can be left out |
//! | `state`, `calls` | a small volume: what entries do, and how system calls become operations |
//! | `world` | devices and a server that does what it likes |
//! | `liar` | a member that lies |
//! | `action` | what may happen, and traces |
//! | `aspects` | what of a state the checks look at |
//! | `honest` | devices, an honest server, and a network |
//! | `beginning` | devices that begin with a checkpoint |
//! | `broken` | what can be wrong with a state |
//! | `explorer` | all states, or some by seed; traces |
//! | `history`, `posix`, `checks` | what programs saw, what they may see, views |
//! | `lapses`, `turns` | locks and time, and whose turn it is |
//! | `search`, `judged` | a second judge that knows no positions |
//! | `scopes`, `exhaustive` | what is explored, and must hold |
//! | `mutants`, `queueing` | rules left out, and what must be found |
//! | `recovery` | a second epoch of the log, after a fork |
//! | `traces` | traces that a search meets too late |
//! | `lying` | the same with a member that lies |
//! | `real`, `tally` | real hashes and signatures, and a volume for long logs |
//! | `network` | the same machines with these, over a network in memory |
//! | `alarms` | when timers ring |
//! | `lies` | wrong replies and messages, one at a time |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod action;
mod alarms;
mod aspects;
mod beginning;
mod broken;
mod calls;
mod chain;
mod checks;
mod device;
mod engine;
mod exhaustive;
mod explorer;
mod history;
mod honest;
mod judged;
mod lapses;
mod liar;
mod lies;
mod lying;
mod mutants;
mod network;
mod posix;
mod protocol;
mod queueing;
mod real;
mod recovery;
mod rules;
mod scopes;
mod search;
mod server;
mod state;
mod symbolic;
mod tally;
mod traces;
mod turns;
mod wide;
mod world;
