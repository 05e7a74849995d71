//! Threads for what a reader can have done while it waits for a device itself.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// Threads that take a job only if they have nothing else to do. They end when this is dropped.
pub(crate) struct Beside {
    jobs: SyncSender<Job>,
}

impl Beside {
    /// Starts `threads` threads.
    ///
    /// # Errors
    /// The system has no threads.
    pub fn start(threads: usize) -> io::Result<Beside> {
        // Without any place to wait, a job is taken only by a thread that waits for one.
        let (send, receive) = sync_channel(0);
        let receive = Arc::new(Mutex::new(receive));
        for _ in 0..threads {
            let receive = Arc::clone(&receive);
            let thread = std::thread::Builder::new().name("map".to_owned());
            thread.spawn(move || serve(&receive))?;
        }
        Ok(Beside { jobs: send })
    }

    /// Has the job done at once by another thread. False if none has time: the job is dropped.
    pub fn run(&self, job: Job) -> bool {
        self.jobs.try_send(job).is_ok()
    }
}

fn serve(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let next = {
            let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
            jobs.recv()
        };
        match next {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;

    /// Threads need a moment until they wait.
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
    fn job_is_done_by_a_thread_that_waits_and_refused_if_none_does() {
        let beside = Beside::start(1).unwrap();
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
