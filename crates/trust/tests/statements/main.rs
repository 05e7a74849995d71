//! Statements, policies, floors and history seen from outside: one named attack for each rule, and
//! honest use beside it. Remove a check, and the attack of its name must succeed.

mod honest;
mod world;
