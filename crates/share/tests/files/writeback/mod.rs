//! Files that programs have open and change on several devices: [`share::writeback`] with the real engines, orderer and
//! evaluation, in random walks and directed schedules. Devices are killed, lose their connection and give up; the server is
//! killed with what is not durable.
//!
//! | module | what lives there |
//! |---|---|
//! | `layer` | does what the state machines of a device's files ask for |
//! | `world` | devices, and tasks that take turns by a seed |
//! | `program` | what programs do |
//! | `truth` | what happened, and what must hold |
//! | `walks` | random walks |
//! | `schedules` | schedules that a walk seldom meets |

mod layer;
mod program;
mod schedules;
mod truth;
mod walks;
mod world;
