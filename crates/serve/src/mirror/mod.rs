//! The mirror.

pub(crate) mod bundle;
pub(crate) mod disk_read;
pub mod error;
pub(crate) mod http;
pub(crate) mod path_cache;
pub mod reader;
pub mod repository;
pub(crate) mod response_cache;
pub mod server;

pub use error::ServeError;
pub use reader::RepositoryReader;
pub use server::Server;
