//! Collection: the server removes blocks that nobody needs any more (design `share.md`, *Collection*;
//! [decision 0109](../../../../docs/decisions/0109-collection-on-the-server.md)). Devices believe the server for
//! availability only, so a collection that removes too much costs files, and never makes anybody read wrong bytes.
//!
//! It marks what any position of the window needs, and each pin. Then it sweeps: what is neither marked nor young goes. Clients
//! go on beside it. An entry that is ordered during the walk names blocks that were stored or touched before it: they
//! are young.
//!
//! | module | what lives there |
//! |---|---|
//! | [`ages`] | how old blocks are, and where the window begins; without input or output |
//! | [`needed`] | which folds and entries are needed; without input or output |
//! | [`marking`] | the walk over what these name; without input or output |
//! | [`book`] | the ages and their files |
//! | [`boot`] | which run of the machine's kernel this is |

pub mod ages;
pub mod book;
pub mod boot;
pub mod marking;
pub mod needed;
