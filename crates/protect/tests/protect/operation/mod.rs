//! A protected device with its threads, compared with a model: random requests, crashes, detaching.

mod attached;
mod lies;
mod random;
mod small_ring;
