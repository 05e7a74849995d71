//! The figures, in the order in which they are run and printed.
//!
//! The numbers are those of `docs/benchmarks.md`, which describes each figure.

mod beside;
mod blocks;
mod catch_up;
mod change;
mod clients;
mod compile;
mod device;
mod fork;
mod getdata;
mod growth;
mod large;
mod lookup;
mod ordered;
mod proofs;
mod publish;
mod pull;
mod reading;
mod recovery;
mod removed;
mod republish;
pub mod restarted;
mod small;
mod start;
mod stored;
mod team;
mod whole;
pub mod writers;

use crate::figure::Figure;

/// The figures that `gate` runs by default.
pub const GATE: [u8; 7] = [1, 2, 4, 6, 9, 11, 12];

/// All figures.
pub const ALL: &[Figure] = &[
    publish::FIGURE,
    republish::FIGURE,
    pull::FIGURE,
    large::COLD,
    large::WARM,
    small::FIGURE,
    blocks::FIGURE,
    compile::FIGURE,
    clients::FIGURE,
    lookup::FIGURE,
    getdata::FIGURE,
    start::FAR,
    growth::FIGURE,
    recovery::FIGURE,
    start::CACHED,
    beside::FIGURE,
    stored::FIGURE,
    ordered::FIGURE,
    writers::FIGURE,
    change::FIGURE,
    catch_up::FIGURE,
    restarted::FIGURE,
    fork::FIGURE,
    whole::FIGURE,
    proofs::FIGURE,
    removed::FIGURE,
    team::FIGURE,
    device::BUILD,
    device::MAIL,
    device::FILES,
    device::SEQUENTIAL,
    device::READS,
    device::WRITES,
    device::INTEGRITY,
    device::LIMITS,
];
