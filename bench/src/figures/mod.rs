//! The figures, in the order in which they are run and printed.
//!
//! Numbers are those of `docs/benchmarks.md`, where each is described; a number that is missing here
//! is not a measurement of this program.

mod blocks;
mod clients;
mod compile;
mod getdata;
mod growth;
mod large;
mod lookup;
mod publish;
mod pull;
mod reading;
mod recovery;
mod republish;
mod small;
mod start;

use crate::figure::Figure;

/// All of them.
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
];
