//! A mirror of published volumes: it looks up and sends (SFSRO 4.2's `sfsrosd`).
//!
//! It checks nothing, signs nothing and holds no key: clients verify all its answers. A slow disk must not
//! stall the other connections, so a read that would wait for it goes to a thread of its own. Relies on
//! [`crate::net`] for connections and on [`RepositoryReader`] for repositories.
//!
//! | module | what it holds |
//! |---|---|
//! | [`server`] | addresses, and the search for new heads |
//! | `service` | requests of the bulla protocol |
//! | `http` | the repositories' own layout over HTTP |
//! | `volumes` | the volumes, and the state that requests share |
//! | `disk_read` | reads that wait for the disk |
//! | `bundle`, `walk` | a head with the records that a reader needs next, and how they are found |
//! | `path_records`, `path_cache` | the records on a path, and a cache of them |
//! | `response_cache` | answers that are asked for often |
//! | [`reader`], [`repository`] | what a mirror needs of a repository, and a repository on disk |
//! | [`options`], [`counters`], [`metrics`], [`error`] | settings, counters, errors of starting |

pub(crate) mod bundle;
pub mod counters;
pub(crate) mod disk_read;
pub mod error;
pub(crate) mod http;
pub mod metrics;
pub mod options;
pub(crate) mod path_cache;
pub(crate) mod path_records;
pub mod reader;
pub mod repository;
pub(crate) mod response_cache;
pub mod server;
pub(crate) mod service;
pub(crate) mod volumes;
pub(crate) mod walk;

pub use counters::Counters;
pub use error::ServeError;
pub use options::Options;
pub use reader::RepositoryReader;
pub use server::{Refresher, Server};
