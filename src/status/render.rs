//! The report for people: one screen, a line a subject, nothing that says nothing.
//!
//! In: a [`Report`]. Out: the whole text, ended by a newline. Pure.

use super::Report;

/// Running builds that are listed; more are counted.
const BUILDS_SHOWN: usize = 6;

/// Writes the report.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut lines: Vec<(&str, String)> = vec![("service", service(report))];
    if let Some(phase) = &report.phase {
        let since = duration(phase.elapsed_seconds);
        lines.push(("phase", format!("{}: {}, for {since}", phase.name, phase.step)));
    }
    lines.push(("server", server(report)));
    lines.extend(blocks(report).map(|text| ("blocks", text)));
    lines.extend(tip(report).map(|text| ("tip", text)));
    lines.extend(live(report).map(|text| ("live", text)));
    lines.extend(refused(report).map(|text| ("refused", text)));
    lines.extend(left(report).map(|text| ("left", text)));
    lines.extend(rates(report).map(|text| ("rates", text)));
    lines.extend(cache(report).map(|text| ("UTXO cache", text)));
    lines.extend(segments(report).map(|text| ("segments", text)));
    for (at, text) in indexes(report).into_iter().enumerate() {
        lines.push((if at == 0 { "indexes" } else { "" }, text));
    }
    lines.extend(constraints(report).map(|text| ("constraints", text)));
    lines.extend(disk(report).map(|text| ("disk", text)));
    lines.extend(memory(report).map(|text| ("memory", text)));
    if let Some(reorg) = &report.last_reorg {
        let ago = ago(report.at_timestamp_seconds - reorg.at_timestamp_seconds);
        let (depth, fork) =
            (counted(u64::from(reorg.depth_blocks), "block"), count(reorg.fork_height.into()));
        lines.push(("last reorg", format!("{ago}: {depth} above height {fork} replaced")));
    }
    lines.extend(report.notes.iter().map(|note| ("note", note.replace('\n', " "))));
    let network = report.network.as_ref().map_or_else(String::new, |network| format!(", {network}"));
    let mut text = format!("satgres {}{network}, {}\n", report.satgres_version, report.data_dir);
    for (label, line) in lines {
        text.push_str(&format!("{label:<12}{line}\n"));
    }
    text
}

fn service(report: &Report) -> String {
    let service = &report.service;
    let at = report.at_timestamp_seconds;
    let seen = service.silent_seconds.map_or_else(String::new, ago);
    let doing = match (&service.last_phase, &service.last_step) {
        (Some(phase), Some(step)) => format!("{phase}: {step}"),
        _ => "?".to_owned(),
    };
    match service.state {
        "never" => "not running; nothing was loaded here yet: `satgres run` does".to_owned(),
        "running" => {
            let pid = service.pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
            let since = duration(at - service.started_timestamp_seconds.unwrap_or(at));
            let silent = service.silent_seconds.filter(|seconds| *seconds > super::SILENCE_SECONDS);
            let silent = silent.map_or_else(String::new, |_| format!("; its last word came {seen}"));
            format!("running, process {pid}, for {since}{silent}")
        }
        "finished" => format!("not running; finished {seen}, all that the files held is queryable"),
        "stopped" => format!("not running; stopped by a signal {seen}, in {doing}"),
        "failed" => {
            let code = service.exit_code.unwrap_or(1);
            let error = service.error.as_deref().unwrap_or("?").replace('\n', " ");
            format!("not running; failed {seen} with exit code {code}, in {doing}\n            {error}")
        }
        "dead" => format!("not running; killed or crashed, last seen {seen}, in {doing}"),
        "unseen" => format!(
            "last word {seen}, in {doing}; its process cannot be seen from here (another container or user)"
        ),
        _ => "unknown".to_owned(),
    }
}

fn server(report: &Report) -> String {
    let server = &report.server;
    let version = server.version.as_ref().map_or_else(String::new, |version| format!(" {version}"));
    let pid = server.pid.map_or_else(String::new, |pid| format!(", process {pid}"));
    let database =
        server.database.as_ref().map_or_else(String::new, |database| format!(", database {database}"));
    let message = server
        .message
        .as_ref()
        .map_or_else(String::new, |message| format!(" ({})", message.replace('\n', " ")));
    match server.state {
        "absent" => "no PostgreSQL was made yet".to_owned(),
        "down" => format!("PostgreSQL{version} is down{database}{message}"),
        "unreachable" => format!("PostgreSQL cannot be reached{database}{message}"),
        "unknown" => "unknown: no permission to look".to_owned(),
        "up" | "standby" => {
            let began = server.started_timestamp_seconds;
            let since = began.map_or_else(String::new, |began| {
                format!(", for {}", duration(report.at_timestamp_seconds - began))
            });
            let standby = if server.state == "standby" { ", a standby" } else { "" };
            format!("PostgreSQL{version} is up{standby}{database}{pid}{since}")
        }
        "recovering" => format!("PostgreSQL{version} is recovering from a crash{database}{pid}{message}"),
        "silent" => format!("PostgreSQL{version} does not answer{database}{pid}"),
        "refusing" => format!("PostgreSQL{version} refuses connections{database}{pid}{message}"),
        state => format!("PostgreSQL{version} is {state}{database}{pid}{message}"),
    }
}

fn blocks(report: &Report) -> Option<String> {
    let heights = &report.heights;
    let mut parts = Vec::new();
    let height = |height: u32| count(height.into());
    parts.extend(heights.attached.map(|at| format!("readers see up to {}", height(at))));
    parts.extend(heights.loaded.map(|at| format!("loaded up to {}", height(at))));
    let loading = heights.loading.filter(|at| Some(*at) > heights.loaded);
    parts.extend(loading.map(|at| format!("loading {}", height(at))));
    parts.extend(heights.files.map(|at| format!("the files reach {}", height(at))));
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn tip(report: &Report) -> Option<String> {
    let tip = report.tip.as_ref()?;
    let hash = tip.hash.as_deref().unwrap_or("hash unknown");
    let of = if tip.source == "files" { " of the files" } else { "" };
    let confirmed =
        if tip.is_confirmed_by_node { "confirmed by a node" } else { "no node has confirmed the tip" };
    Some(format!("{}{of} {hash}; {confirmed}", count(tip.height.into())))
}

fn live(report: &Report) -> Option<String> {
    let live = report.live.as_ref()?;
    let node = match (live.is_node_connected, live.lag_blocks) {
        (Some(false), _) => "; no node is connected".to_owned(),
        (_, Some(0)) => "; the node has no more".to_owned(),
        (_, Some(lag)) => format!("; {} behind the node", counted(lag.into(), "block")),
        (_, None) => String::new(),
    };
    let age = ago(live.block_age_seconds);
    let connected = counted(live.connected_blocks, "block");
    let reorgs = if live.reorgs > 0 { format!(", {}", counted(live.reorgs, "reorg")) } else { String::new() };
    Some(format!("the tip's time was {age}{node}; {connected} connected since the start{reorgs}"))
}

fn refused(report: &Report) -> Option<String> {
    let invalid = report.invalid_blocks.as_ref()?;
    let first = invalid.first.as_ref()?;
    let short: String = first.hash.chars().rev().take(16).collect::<Vec<_>>().into_iter().rev().collect();
    let height = count(first.height.into());
    Some(format!(
        "{}, the lowest at height {height} (…{short}): {}",
        counted(invalid.count, "block"),
        first.reason
    ))
}

fn left(report: &Report) -> Option<String> {
    let eta = &report.eta;
    let mut parts = Vec::new();
    parts.extend(eta.load_seconds.map(|seconds| format!("{} to load", duration(seconds))));
    parts.extend(eta.restore_seconds.map(|seconds| format!("about {} for indexes", duration(seconds))));
    if report.load.is_some() && parts.is_empty() {
        return Some("not known yet".to_owned());
    }
    (!parts.is_empty()).then(|| parts.join(", then "))
}

fn rates(report: &Report) -> Option<String> {
    let load = report.load.as_ref()?;
    Some(format!(
        "{} tx/s, {} rows/s, {:.1} MB/s; {} of {} of blocks",
        count(load.txs_per_second as u64),
        count(load.rows_per_second as u64),
        load.bytes_per_second / 1e6,
        size(load.done_bytes),
        size(load.total_bytes)
    ))
}

fn cache(report: &Report) -> Option<String> {
    let cache = report.utxo_cache.as_ref()?;
    let budget = cache.budget_bytes.map_or_else(String::new, |bytes| format!(" of {}", size(bytes)));
    let mut text = format!("{}{budget}, {}", size(cache.used_bytes), counted(cache.coins, "coin"));
    if let Some(ratio) = cache.hit_ratio {
        text.push_str(&format!(", {:.1} % hits", ratio * 100.0));
    }
    if cache.run_files > 0 {
        text.push_str(&format!(
            "; {} in {}, {} waiting",
            counted(cache.run_coins, "coin"),
            counted(cache.run_files, "file"),
            counted(cache.waiting_spends, "spend")
        ));
    }
    Some(text)
}

fn segments(report: &Report) -> Option<String> {
    let segments = &report.segments;
    let (loaded, attached) = (segments.loaded?, segments.attached?);
    let planned = segments.planned.filter(|planned| *planned >= loaded);
    let planned = planned.map_or_else(String::new, |planned| format!(" of {}", count(planned)));
    Some(format!("{}{planned} loaded, {} attached", count(loaded), count(attached)))
}

fn indexes(report: &Report) -> Vec<String> {
    let Some(indexes) = report.indexes.as_ref().filter(|indexes| indexes.total > 0) else {
        return Vec::new();
    };
    let mut first = format!("{} of {} built", count(indexes.done), count(indexes.total));
    if indexes.done < indexes.total {
        first.push_str(&format!(", {:.0} % of the work", indexes.done_ratio.unwrap_or(0.0) * 100.0));
    }
    if indexes.failed > 0 {
        first.push_str(&format!(", {} failed", count(indexes.failed)));
    }
    let mut lines = vec![first];
    for build in indexes.running.iter().take(BUILDS_SHOWN) {
        let step = build.step.strip_prefix("building index: ").unwrap_or(&build.step);
        let (percent, since) = (build.done_ratio * 100.0, duration(build.elapsed_seconds));
        lines.push(format!("{percent:>3.0} % {}, {step}, for {since}", build.name));
    }
    if indexes.running.len() > BUILDS_SHOWN {
        lines.push(format!("and {} more", indexes.running.len() - BUILDS_SHOWN));
    }
    lines
}

fn constraints(report: &Report) -> Option<String> {
    let constraints = report.constraints.filter(|constraints| constraints.total > 0)?;
    let (validated, total) = (count(constraints.validated), count(constraints.total));
    let failed = match constraints.failed {
        0 => String::new(),
        failed => format!(", {} do not hold: see ops.index_jobs", count(failed)),
    };
    Some(format!("{validated} of {total} validated{failed}"))
}

fn disk(report: &Report) -> Option<String> {
    let disk = &report.disk;
    let mut parts = Vec::new();
    parts.extend(disk.database_bytes.map(|bytes| format!("database {}", size(bytes))));
    parts.extend(
        disk.cluster_bytes.filter(|bytes| *bytes > 0).map(|bytes| format!("PostgreSQL {}", size(bytes))),
    );
    parts.extend(disk.coins_bytes.filter(|bytes| *bytes > 0).map(|bytes| format!("coins {}", size(bytes))));
    parts.extend(disk.free_bytes.map(|bytes| format!("{} free", size(bytes))));
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn memory(report: &Report) -> Option<String> {
    let memory = &report.memory;
    let part = |name: &str, used: Option<u64>, planned: Option<u64>| {
        let planned = planned.map_or_else(String::new, |bytes| format!(" of {} planned", size(bytes)));
        used.map(|bytes| format!("{name} {}{planned}", size(bytes)))
    };
    let parts: Vec<String> = [
        part("service", memory.service_bytes, memory.plan_service_bytes),
        part("server", memory.server_bytes, memory.plan_server_bytes),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn ago(seconds: f64) -> String {
    format!("{} ago", duration(seconds))
}

/// The two largest units that count: `45 s`, `12m 3s`, `5h 2m`, `3d 4h`.
fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (minutes, hours, days) {
        (0, _, _) => format!("{seconds} s"),
        (_, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (_, _, 0) => format!("{hours}h {}m", minutes % 60),
        _ => format!("{}d {}h", count(days), hours % 24),
    }
}

/// Three digits and a binary unit: `812 KiB`, `1.25 GiB`.
fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "bytes";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1000.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let digits = match value {
        _ if unit == "bytes" => 0,
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

/// Digits in groups of three.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_sizes_and_numbers_are_short() {
        let times = [0.0, 59.9, 60.0, 723.0, 3_600.0, 18_120.0, 86_400.0, 273_600.0, -5.0];
        let expected = ["0 s", "59 s", "1m 0s", "12m 3s", "1h 0m", "5h 2m", "1d 0h", "3d 4h", "0 s"];
        assert_eq!(times.map(duration), expected);
        let sizes = [0, 999, 1_000, 831_488, 1 << 20, 1_342_177_280, 107_374_182_400, 1 << 43];
        let expected =
            ["0 bytes", "999 bytes", "0.98 KiB", "812 KiB", "1.00 MiB", "1.25 GiB", "100 GiB", "8.00 TiB"];
        assert_eq!(sizes.map(size), expected);
        assert_eq!([0, 999, 1_000, 1_026_843].map(count), ["0", "999", "1,000", "1,026,843"]);
        assert_eq!([counted(1, "block"), counted(0, "block")], ["1 block", "0 blocks"]);
    }
}
