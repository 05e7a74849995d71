//! Collection on the server of a shared volume: its rules explored, and its files.

#![allow(clippy::unwrap_used, clippy::expect_used)] // tests fail by panicking

mod book;
mod explorer;
mod folds;
mod spec;
mod tree;
mod world;
