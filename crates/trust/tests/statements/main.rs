//! Statements, policies, floors and history seen from outside: one named attack for each rule, and
//! honest use beside it. Remove a check, and the attack of its name must succeed.
// The lint's exception for tests does not reach functions that several tests share.
#![allow(clippy::unwrap_used)]

mod chain_attacks;
mod codecs;
mod envelope_attacks;
mod floor_attacks;
mod floor_model;
mod growth;
mod history;
mod honest;
mod path_proofs;
mod policy_attacks;
mod request_attacks;
mod rotation_attacks;
mod vectors;
mod verdict_attacks;
mod world;
