//! What reading commands keep of what they read: checked blocks in memory, and on request blocks on
//! this machine's disk. Relies on `store::cache`. Design: `publish.md`, *Client*.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use store::cache::{CacheLimits, DiskCache};

use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::units::parse_size;

/// The flags; each has a setting behind it.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is kept")]
pub struct Caching {
    /// Memory for checked blocks [default: 256MiB, setting `memory`]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Keep the blocks that are fetched in DIR, and look there first [default: none, setting `cache`]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// What the cache may take of the disk [default: 10GiB, setting `cache-size`]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub cache_size: Option<u64>,
    /// What the cache leaves free of the disk [default: 1GiB, setting `cache-keep-free`]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub cache_keep_free: Option<u64>,
}

impl Caching {
    /// Memory for checked blocks.
    pub fn memory_bytes(&self, config: &Config) -> Outcome<u64> {
        match self.memory {
            Some(bytes) => Ok(bytes),
            None => config.size("memory"),
        }
    }

    /// The cache on disk, if one was named.
    pub fn open(&self, config: &Config) -> Outcome<Option<Arc<DiskCache>>> {
        let named = self.cache.clone().or_else(|| config.path("cache"));
        let Some(directory) = named else {
            return Ok(None);
        };
        let shown = directory.display().to_string();
        // It stays the same when this process changes its directory.
        let directory = std::path::absolute(&directory).map_err(|e| Failure::io(&shown, &e))?;
        let cache = DiskCache::open(&directory, self.limits(config)?)
            .map_err(|e| Failure::of(Kind::Cache, format!("{shown} cannot be a cache"), &e))?;
        Ok(Some(cache))
    }

    /// How much the cache may take.
    pub fn limits(&self, config: &Config) -> Outcome<CacheLimits> {
        let or = |flag: Option<u64>, key| flag.map_or_else(|| config.size(key), Ok);
        Ok(CacheLimits {
            quota_bytes: or(self.cache_size, "cache-size")?,
            keep_free_bytes: or(self.cache_keep_free, "cache-keep-free")?,
        })
    }
}
