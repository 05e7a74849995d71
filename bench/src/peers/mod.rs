//! The peers, each driven with the settings that suit it best for the workload.

pub mod archive;
pub mod http;
pub mod juicefs;
pub mod nginx;
pub mod postgres;
pub mod rsync;
pub mod syncthing;
pub mod view;
