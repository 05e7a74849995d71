//! Talking to the kernel: mounting, unmounting, the mount table, notifications.

pub mod names;
pub mod table;
pub mod unmount;
