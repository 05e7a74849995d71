//! Schedules that a walk seldom meets.
