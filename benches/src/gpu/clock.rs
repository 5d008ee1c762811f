//! Times of contenders that are measured in turn.

use std::time::{Duration, Instant};

use super::{MeasurementFailure, Setup, Size};
use crate::summary::summarize;

/// Work that is over when it returns.
pub(super) type TimedWork<'a> = Box<dyn FnMut() -> Result<(), MeasurementFailure> + 'a>;

/// How often and for how long.
pub(super) struct Clock {
    /// Rounds that do not count: the first loads code, the third records launches.
    warm_rounds: u32,
    /// The clock of a GPU rises under load only.
    warm: Duration,
    least: usize,
    most: usize,
    time: Duration,
}

impl Clock {
    pub fn new(setup: &Setup) -> Clock {
        let time = setup.time;
        match setup.size {
            Size::Device => Clock { warm_rounds: 4, warm: Duration::from_millis(300), least: 3, most: 101, time },
            Size::Small => Clock { warm_rounds: 3, warm: Duration::ZERO, least: 1, most: 1, time },
        }
    }

    /// The median time of each in seconds.
    pub fn medians(&self, contenders: &mut [TimedWork<'_>]) -> Result<Vec<f64>, MeasurementFailure> {
        let start = Instant::now();
        let mut rounds = 0;
        while rounds < self.warm_rounds || start.elapsed() < self.warm {
            contenders.iter_mut().try_for_each(|work| work())?;
            rounds += 1;
        }
        let mut times = vec![vec![]; contenders.len()];
        let start = Instant::now();
        for round in 0..self.most {
            if round >= self.least && start.elapsed() >= self.time {
                break;
            }
            for (work, times) in contenders.iter_mut().zip(&mut times) {
                let start = Instant::now();
                work()?;
                times.push(start.elapsed().as_secs_f64());
            }
        }
        Ok(times.into_iter().map(|times| summarize(times).median).collect())
    }

    /// The median time of one.
    pub fn median<'a>(
        &self,
        work: impl FnMut() -> Result<(), MeasurementFailure> + 'a,
    ) -> Result<f64, MeasurementFailure> {
        let [median] = self.medians(&mut [Box::new(work)])?[..] else {
            return Err("one contender has one time".into());
        };
        Ok(median)
    }
}
