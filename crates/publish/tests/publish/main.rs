//! Publishing: trees of directories and tar streams become volumes that a simple reader reads back, and golden
//! volumes stay what they are. `xtask/tests.toml` names the modules that run alone.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod access;
mod clocks;
mod equivocation;
mod golden;
mod incremental;
mod killed;
mod limits;
mod own_files;
mod place;
mod renewal;
mod restored;
mod support;
mod tar;
mod totals;
mod trees;
mod witnessed;
