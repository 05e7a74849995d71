//! Reads the map on a second thread while a reader waits for the data device.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that takes a job only if it has nothing else to do. It ends when this is dropped.
pub(crate) struct Beside {
    jobs: SyncSender<Job>,
}

impl Beside {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has none.
    pub fn start() -> io::Result<Beside> {
        // Without any place to wait, a job is taken only if the thread waits for one.
        let (jobs, receive) = sync_channel::<Job>(0);
        let thread = std::thread::Builder::new().name("map".to_owned());
        thread.spawn(move || receive.into_iter().for_each(|job| job()))?;
        Ok(Beside { jobs })
    }

    /// Has the job done at once by the thread. False if it has no time: the job is dropped.
    pub fn run(&self, job: Job) -> bool {
        self.jobs.try_send(job).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use super::*;

    /// The thread needs a moment until it waits.
    fn run_soon(beside: &Beside, job: impl Fn() -> Job) -> bool {
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            if beside.run(job()) {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    #[test]
    fn job_is_done_by_the_thread_that_waits_and_refused_while_it_works() {
        let beside = Beside::start().unwrap();
        let (done, results) = channel();
        let (go, wait) = channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let busy = || -> Job {
            let (done, wait) = (done.clone(), Arc::clone(&wait));
            Box::new(move || {
                let _ = wait.lock().unwrap().recv();
                done.send(1).unwrap();
            })
        };
        assert!(run_soon(&beside, busy));
        assert!(!beside.run(busy()), "the only thread is busy");
        drop(go);
        assert_eq!(results.recv(), Ok(1));
        assert!(run_soon(&beside, || {
            let done = done.clone();
            Box::new(move || done.send(2).unwrap())
        }));
        assert_eq!(results.recv(), Ok(2));
    }
}
