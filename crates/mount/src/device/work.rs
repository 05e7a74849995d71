//! Threads that carry requests out, and the memory of writes that wait for one. Threads are started at once and their
//! stacks are small, so that no request needs new ones when memory is short.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Enough for the calls below a [`protect::Block`], whose buffers are on the heap.
const STACK_BYTES: usize = 512 << 10;

/// One request. Dropped without being run it answers EIO, because it owns the right to answer.
pub type Job = Box<dyn FnOnce() + Send>;

/// Threads with a queue. A clone is the same threads; they end after [`Pool::close`].
#[derive(Debug, Clone)]
pub struct Pool {
    shared: Arc<Shared>,
    first_here: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    quiet: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    running: usize,
    closed: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        f.debug_struct("Shared")
            .field("waiting", &state.jobs.len())
            .field("running", &state.running)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        loop {
            let idle = |state: &mut State| state.jobs.is_empty() && !state.closed;
            let waited = self.work.wait_while(self.lock(), idle);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(job) = state.jobs.pop_front() else {
                return;
            };
            self.run(state, job);
        }
    }

    fn run(&self, mut state: MutexGuard<'_, State>, job: Job) {
        state.running += 1;
        drop(state);
        // A panic has answered EIO: the request was dropped. The thread stays for the others.
        let _ = catch_unwind(AssertUnwindSafe(job));
        let mut state = self.lock();
        state.running -= 1;
        if state.running == 0 && state.jobs.is_empty() {
            self.quiet.notify_all();
        }
    }
}

impl Pool {
    /// Starts `threads` threads, at least one.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(name: &str, threads: usize) -> io::Result<Pool> {
        let pool = Pool {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                work: Condvar::new(),
                quiet: Condvar::new(),
            }),
            first_here: false,
        };
        for _ in 0..threads.max(1) {
            let shared = pool.shared.clone();
            std::thread::Builder::new()
                .name(name.to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    become_io_flusher();
                    shared.serve();
                })?;
        }
        Ok(pool)
    }

    /// The same, but a job that is the only one runs on its caller's thread, which saves two changes of thread. One at a
    /// time does.
    #[must_use]
    pub fn with_first_here(self) -> Pool {
        Pool {
            first_here: true,
            ..self
        }
    }

    /// Hands `job` to a thread. After [`Pool::close`] it is dropped.
    pub fn run(&self, job: Job) {
        let mut state = self.shared.lock();
        if state.closed {
            return;
        }
        if self.first_here && state.running == 0 && state.jobs.is_empty() {
            self.shared.run(state, job);
            return;
        }
        state.jobs.push_back(job);
        drop(state);
        self.shared.work.notify_one();
    }

    /// Accepts no more jobs. Those that were accepted are done.
    pub fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }

    /// Waits until nothing is waiting or running, until `deadline` at most. Returns how many are left.
    pub fn wait_quiet(&self, deadline: Instant) -> usize {
        let patience = deadline.saturating_duration_since(Instant::now());
        let busy = |state: &mut State| state.running > 0 || !state.jobs.is_empty();
        let quiet = &self.shared.quiet;
        let waited = quiet.wait_timeout_while(self.shared.lock(), patience, busy);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.running + state.jobs.len()
    }
}

/// Tells the kernel that this thread writes what memory is freed by, so that it does not wait for such writes itself
/// when it needs memory (prctl(2), PR_SET_IO_FLUSHER). Only root may; for others there is no loop device either.
fn become_io_flusher() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "not marked as an I/O flusher");
    }
}

/// Memory that may be used for something, in bytes.
#[derive(Debug)]
pub struct Room {
    used: AtomicU64,
    limit: u64,
}

impl Room {
    /// `limit` bytes.
    pub fn new(limit: u64) -> Arc<Room> {
        Arc::new(Room {
            used: AtomicU64::new(0),
            limit,
        })
    }

    /// Takes `bytes` of it, or nothing if there is less.
    pub fn take(self: &Arc<Room>, bytes: u64) -> Option<Taken> {
        let taken = Taken {
            room: self.clone(),
            bytes,
        };
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        // Dropped, it gives back what was too much.
        (before + bytes <= self.limit).then_some(taken)
    }
}

/// Memory of a [`Room`], given back when this is dropped.
#[derive(Debug)]
pub struct Taken {
    room: Arc<Room>,
    bytes: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn pool_does_what_it_accepted_and_then_ends() {
        let pool = Pool::new("test", 3).unwrap();
        let (done, results) = mpsc::channel();
        for number in 0..100 {
            let done = done.clone();
            pool.run(Box::new(move || done.send(number).unwrap()));
        }
        pool.close();
        let late = done.clone();
        pool.run(Box::new(move || late.send(1000).unwrap()));
        assert_eq!(pool.wait_quiet(Instant::now() + Duration::from_secs(10)), 0);
        drop(done);
        let mut results: Vec<i32> = results.iter().collect();
        results.sort_unstable();
        assert_eq!(results, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn pool_survives_a_panic_and_tells_what_is_left() {
        let pool = Pool::new("test", 1).unwrap();
        pool.run(Box::new(|| {
            std::panic::resume_unwind(Box::new("of a test"))
        }));
        let (go, wait) = mpsc::channel::<()>();
        pool.run(Box::new(move || assert!(wait.recv().is_err())));
        pool.run(Box::new(|| {}));
        assert_eq!(
            pool.wait_quiet(Instant::now() + Duration::from_millis(50)),
            2
        );
        drop(go);
        assert_eq!(pool.wait_quiet(Instant::now() + Duration::from_secs(10)), 0);
    }

    #[test]
    fn only_job_runs_here_and_another_one_meanwhile_elsewhere() {
        let pool = Pool::new("test", 1).unwrap().with_first_here();
        let (done, results) = mpsc::channel();
        let (inner, here) = (pool.clone(), std::thread::current().id());
        let other = done.clone();
        pool.run(Box::new(move || {
            inner.run(Box::new(move || {
                other.send(std::thread::current().id()).unwrap();
            }));
            assert_ne!(results.recv().unwrap(), here);
            done.send(std::thread::current().id()).unwrap();
            assert_eq!(results.recv().unwrap(), here);
        }));
        assert_eq!(pool.wait_quiet(Instant::now() + Duration::from_secs(10)), 0);
    }

    #[test]
    fn room_is_bounded_and_given_back() {
        let room = Room::new(100);
        let first = room.take(60).unwrap();
        assert!(room.take(41).is_none());
        let second = room.take(40).unwrap();
        assert!(room.take(1).is_none());
        drop((first, second));
        assert!(room.take(100).is_some());
    }
}
