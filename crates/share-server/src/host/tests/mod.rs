//! The server of a shared volume: what devices get from it, crashes at every write, a real kill, and hostile devices.

mod collecting;
mod crash;
mod damage;
mod devices;
mod epochs;
mod filling;
mod hostile;
mod kill;
mod pace;
mod promise;
mod repair;
mod repair_epochs;
mod serving;
mod vectors;
mod volume;
mod world;
