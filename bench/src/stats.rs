//! Medians, spreads and ratios of a few samples.
//!
//! Everything that the tables say goes through here. The contestants of a figure run interleaved,
//! so sample *i* of one and sample *i* of another met the same weather on the machine: the spread of
//! a ratio is taken round by round, not from the extremes of two unrelated lists.

/// The middle of the samples (mean of the two middle ones), none for no samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(sorted.len() / 2 - 1)?;
    Some(f64::midpoint(lower, upper))
}

/// Smallest and largest sample, none for no samples.
pub fn spread(samples: &[f64]) -> Option<(f64, f64)> {
    let low = samples.iter().copied().min_by(f64::total_cmp)?;
    let high = samples.iter().copied().max_by(f64::total_cmp)?;
    Some((low, high))
}

/// Ours over a peer's, with the range that the single rounds gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// Ratio of the medians.
    pub of_medians: f64,
    /// Smallest ratio of one round.
    pub low: f64,
    /// Largest ratio of one round.
    pub high: f64,
}

/// Compares two interleaved series; none if either is empty or a peer's sample is not positive.
pub fn ratio(ours: &[f64], peers: &[f64]) -> Option<Ratio> {
    if peers.iter().any(|p| *p <= 0.0) {
        return None;
    }
    let of_medians = median(ours)? / median(peers)?;
    let rounds: Vec<f64> = ours.iter().zip(peers).map(|(o, p)| o / p).collect();
    let (low, high) = spread(&rounds)?;
    Some(Ratio {
        of_medians,
        low,
        high,
    })
}

/// The least or the greatest of several interleaved series in each round (`f64::min`, `f64::max`);
/// empty if one of them is, or there are none.
pub fn round_by_round(series: &[&[f64]], choose: fn(f64, f64) -> f64) -> Vec<f64> {
    let rounds = series.iter().map(|samples| samples.len()).min();
    (0..rounds.unwrap_or(0))
        .filter_map(|round| {
            let samples = series.iter().filter_map(|samples| samples.get(round));
            samples.copied().reduce(choose)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_depend_on_order() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_spread_of_a_ratio_is_taken_round_by_round() {
        // The machine was twice as slow in the second round, for both alike.
        let r = ratio(&[1.0, 2.0, 1.0], &[2.0, 4.0, 2.0]).unwrap();
        assert_eq!((r.of_medians, r.low, r.high), (0.5, 0.5, 0.5));
    }

    #[test]
    fn the_worst_is_chosen_round_by_round() {
        let series: [&[f64]; 2] = [&[1.0, 5.0, 3.0], &[2.0, 4.0, 9.0]];
        assert_eq!(round_by_round(&series, f64::max), [2.0, 5.0, 9.0]);
        assert_eq!(round_by_round(&series, f64::min), [1.0, 4.0, 3.0]);
        assert!(round_by_round(&[&[1.0], &[]], f64::max).is_empty());
        assert!(round_by_round(&[], f64::max).is_empty());
    }

    #[test]
    fn no_ratio_without_a_peer() {
        assert_eq!(ratio(&[1.0], &[]), None);
        assert_eq!(ratio(&[], &[1.0]), None);
        assert_eq!(ratio(&[1.0], &[0.0]), None);
    }
}
