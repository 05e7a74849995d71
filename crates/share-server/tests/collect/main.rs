//! Collection on the server of a shared volume: its rules explored, and its files.

#![allow(clippy::unwrap_used, clippy::expect_used)] // tests fail by panicking

mod authors;
mod book;
mod explorer;
mod folds;
mod marking;
mod spec;
#[expect(dead_code, reason = "tests over real storage use more of it")]
mod tree;
mod world;
