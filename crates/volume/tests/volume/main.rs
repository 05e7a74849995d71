//! The verified reader against honest and hostile replicas and publishers (design `quality.md`,
//! *Adversaries*). Each attack is named; the expected verdict is the one that the user gets.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod ahead;
mod caching;
mod comparing;
mod consistency;
mod evidence;
mod far;
mod forks;
mod freshness;
mod graces;
mod honest;
mod lies;
mod locked;
mod mirrors;
mod offline;
mod outages;
mod past;
mod policies;
mod profiles;
mod publisher;
mod siblings;
mod web;
mod world;
