//! Which complexity explains how a benchmark grows with its size.
//!
//! For each candidate f the factor c that minimises the squares of c f(n) - t; its error is the root of their mean, as
//! a share of the mean of t. The best comes first. Times may be of any unit.

/// One size and what it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The size.
    pub n: f64,
    /// What one call took, seconds.
    pub seconds: f64,
}

/// How well one candidate fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The candidate, as people write it.
    pub name: &'static str,
    /// Seconds a unit of f(n).
    pub factor: f64,
    /// Normalised root mean square error, a fraction.
    pub error: f64,
}

type Growth = fn(f64) -> f64;

/// The candidates.
const CANDIDATES: [(&str, Growth); 6] = [
    ("O(1)", |_| 1.0),
    ("O(log n)", |n| n.log2()),
    ("O(n)", |n| n),
    ("O(n log n)", |n| n * n.log2()),
    ("O(n^2)", |n| n * n),
    ("O(n^3)", |n| n * n * n),
];

/// Fits all candidates, the best first.
pub fn fit(points: &[Point]) -> Vec<Fit> {
    let mut fits: Vec<Fit> = CANDIDATES.iter().map(|&(name, f)| fit_one(points, name, f)).collect();
    fits.sort_by(|a, b| a.error.total_cmp(&b.error));
    fits
}

fn fit_one(points: &[Point], name: &'static str, f: Growth) -> Fit {
    let sum = |term: &dyn Fn(&Point) -> f64| points.iter().map(term).sum::<f64>();
    let factor =
        sum(&|point| f(point.n) * point.seconds) / sum(&|point| f(point.n).powi(2)).max(f64::MIN_POSITIVE);
    let count = points.len() as f64;
    let mean = sum(&|point| point.seconds) / count;
    let squares = sum(&|point| (factor * f(point.n) - point.seconds).powi(2));
    Fit { name, factor, error: (squares / count).sqrt() / mean }
}
