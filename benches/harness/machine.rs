//! What makes a machine unfit for measurements: frequencies that change, and other work.

use std::fs;
use std::path::Path;

/// Returns what may disturb measurements on this machine, each as a sentence.
pub fn warnings() -> Vec<String> {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    warnings_from(Path::new("/sys/devices/system/cpu"), &load, cfg!(debug_assertions))
}

/// Prints them, one a line.
pub fn print_warnings() {
    for warning in warnings() {
        println!("Warning: {warning}");
    }
}

/// Returns the warnings from given facts: the folder of the processors, the text of `loadavg`, whether this is a debug build.
pub fn warnings_from(cpus: &Path, loadavg: &str, is_debug: bool) -> Vec<String> {
    let read = |path: &str| fs::read_to_string(cpus.join(path)).map(|text| text.trim().to_owned()).ok();
    let mut warnings = Vec::new();
    if is_debug {
        warnings.push("this is a debug build: figures mean nothing; use cargo bench".to_owned());
    }
    if let Some(governor) = read("cpu0/cpufreq/scaling_governor").filter(|governor| governor != "performance")
    {
        warnings.push(format!(
            "frequency scaling is on (governor {governor}); `cpupower frequency-set -g performance` ends it"
        ));
    }
    let limits = ["cpu0/cpufreq/scaling_min_freq", "cpu0/cpufreq/scaling_max_freq"].map(read);
    if let [Some(least), Some(most)] = limits
        && least != most
    {
        warnings.push(format!("the frequency may change between {least} and {most} kHz"));
    }
    let has_turbo = read("intel_pstate/no_turbo").as_deref() == Some("0")
        || read("cpufreq/boost").as_deref() == Some("1");
    if has_turbo {
        warnings.push("turbo is on: the frequency depends on the temperature".to_owned());
    }
    let busy = loadavg.split(' ').next().and_then(|load| load.parse::<f64>().ok());
    if let Some(busy) = busy.filter(|load| *load > 0.5) {
        warnings.push(format!("other work is running (load {busy:.2})"));
    }
    warnings
}
