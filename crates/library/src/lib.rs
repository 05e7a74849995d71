//! Volumes of any kind through one door: `docs/library.md` has the page for users.
//!
//! [`open`] opens what a user names: a published volume at any place, or a shared volume of which this machine is a device.
//! A [`Tree`] is one state of it, and gives names, attributes and content, each proved before it is given. What reads a
//! whole tree exists once for all kinds: [`walk`], [`extract`], [`verify`], [`diff`]. What only shared volumes can do
//! (changes, members, their log) is in [`shared`]; what only published ones can do is in `volume`.
//!
//! | module | what lives there |
//! |---|---|
//! | `open` | a SOURCE becomes a [`Volume`] |
//! | [`tree`] | one state of a volume |
//! | [`walk`] | a depth-first walk that fetches ahead |
//! | [`extract`], [`verify`], [`diff`] | what reads whole trees |
//! | [`restore`] | what a shared volume had, again |
//! | [`edit`] | new content of a file out of its present content and what changed of it |
//! | [`touch`] | asks the server to keep content that is named again |
//! | [`shared`], [`members`] | shared volumes |
//! | [`error`] | what can go wrong |
//! | [`path`] | paths |

pub mod diff;
pub mod edit;
pub mod error;
pub mod extract;
pub mod members;
mod open;
pub mod path;
pub mod restore;
pub mod shared;
pub mod touch;
pub mod tree;
pub mod verify;
pub mod walk;

pub use error::Error;
pub use open::{Options, Source, Volume, open, open_published};
pub use tree::{Entry, Page, Tree};
