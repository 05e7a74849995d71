//! The caches of reading commands: verified blocks in memory and, if asked for, blocks on disk. Relies on
//! `store::cache`. Design: `publish.md`, *Client*.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use store::cache::{CacheLimits, DiskCache};

use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::units::parse_size;

/// A heading for these flags only: `next_help_heading` would also apply to the arguments that follow.
const HEADING: &str = "Caches";

/// The flags. Each has a setting of the same name as its default.
#[derive(Debug, Args)]
pub struct Caching {
    /// Memory for verified blocks [default: 256MiB, setting `memory`]
    #[arg(long, help_heading = HEADING, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Cache fetched blocks in DIR [default: no disk cache, setting `cache`]
    #[arg(long, help_heading = HEADING, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Limit of the size of the disk cache [default: 10GiB, setting `cache-size`]
    #[arg(long, help_heading = HEADING, value_name = "SIZE", value_parser = parse_size)]
    pub cache_size: Option<u64>,
    /// Disk space that the cache leaves free [default: 1GiB, setting `cache-keep-free`]
    #[arg(long, help_heading = HEADING, value_name = "SIZE", value_parser = parse_size)]
    pub cache_keep_free: Option<u64>,
}

impl Caching {
    /// Memory for verified blocks.
    pub fn memory_bytes(&self, config: &Config) -> Outcome<u64> {
        match self.memory {
            Some(bytes) => Ok(bytes),
            None => config.size("memory"),
        }
    }

    /// The directory of the disk cache, if one is configured.
    pub fn directory(&self, config: &Config) -> Option<PathBuf> {
        self.cache.clone().or_else(|| config.path("cache"))
    }

    /// Opens the disk cache, if one is configured.
    pub fn open(&self, config: &Config) -> Outcome<Option<Arc<DiskCache>>> {
        let Some(directory) = self.directory(config) else {
            return Ok(None);
        };
        let shown = directory.display().to_string();
        // The path must stay valid when this process changes its working directory.
        let directory = std::path::absolute(&directory).map_err(|e| Failure::io(&shown, &e))?;
        let cache = DiskCache::open(&directory, self.limits(config)?)
            .map_err(|e| Failure::of(Kind::Cache, format!("cannot use {shown} as a cache"), &e))?;
        Ok(Some(cache))
    }

    /// The limits of the disk cache.
    pub fn limits(&self, config: &Config) -> Outcome<CacheLimits> {
        let or = |flag: Option<u64>, key| flag.map_or_else(|| config.size(key), Ok);
        Ok(CacheLimits {
            quota_bytes: or(self.cache_size, "cache-size")?,
            keep_free_bytes: or(self.cache_keep_free, "cache-keep-free")?,
        })
    }
}
