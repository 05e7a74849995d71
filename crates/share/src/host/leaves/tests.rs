//! Tests of the files of leaves.
