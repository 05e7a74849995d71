//! Placeholder until this crate's first code lands.
