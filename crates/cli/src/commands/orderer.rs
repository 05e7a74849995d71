//! `bulla orderer new`: the key of a server that orders the writes of shared volumes. Volumes name it in their genesis
//! policy, and it signs the server's notes.

use crate::args::{Global, KeyNew};
use crate::commands::key;
use crate::failure::Outcome;
use crate::output::{Done, Output};

/// Creates the key and prints its public key.
pub fn new(args: &KeyNew, global: &Global, output: &mut Output) -> Outcome<Done> {
    key::create(args, global, output, "can order the writes of its volumes")
}
