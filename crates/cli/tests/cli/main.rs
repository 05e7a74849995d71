//! Tests of the real binary, one module for each subject. They share one process, so no test changes the
//! environment, the working directory or the limits of that process: each starts children with its own.
//! `xtask/tests.toml` names the modules that run alone.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod adversity;
mod archive;
mod caches;
mod commands;
mod crashes;
mod crowd;
mod doctor;
mod documents;
mod foreign_roles;
mod forks;
mod fstab;
mod history;
mod keys;
mod keys_elsewhere;
mod lab;
mod links;
mod messages;
mod metrics;
mod misbehaving;
mod mounts;
mod network;
mod offline;
mod packages;
mod policies;
mod proofs;
mod protect;
mod protect_kills;
mod protect_refusals;
mod refused;
mod replicas;
mod rotation;
mod second_implementation;
mod separate_roles;
mod services;
mod share_checkpoint;
mod share_evidence;
mod shared;
mod shared_adversity;
mod shared_distance;
mod shared_engine;
mod shared_forks;
mod shared_history;
mod shared_homes;
mod shared_lab;
mod shared_machines;
mod shared_reads;
mod shared_recovery;
mod shared_server;
mod signals;
mod signed_before;
mod sources;
mod status;
mod support;
mod timestamps;
mod two_mirrors;
mod unheard;
mod units;
mod versions;
mod web;
mod witness_adversity;
mod witnessed;
mod witnesses;
