//! Links to servers of shared volumes: honest ones, and ones with another key, that stall, lie or never stop.

mod format_example;
mod honest;
mod hostile;
mod keys;
mod peer;
