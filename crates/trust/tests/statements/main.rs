//! Statements, policies, floors and history, tested from outside: one named attack for each rule, and honest
//! use beside it. When a check is removed, the attack that it prevents must succeed.
// The lint's exception for tests does not reach functions that several tests share.
#![allow(clippy::unwrap_used)]

mod chain_attacks;
mod chain_model;
mod codecs;
mod envelope_attacks;
mod floor_attacks;
mod floor_model;
mod forks;
mod growth;
mod history;
mod honest;
mod long_chains;
mod path_proofs;
mod policy_attacks;
mod proposals;
mod request_attacks;
mod rotation_attacks;
mod sightings;
mod signature_attacks;
mod timestamp_requests;
mod vector_files;
mod vectors;
mod verdict_attacks;
mod witnesses;
mod world;
