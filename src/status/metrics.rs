//! `/metrics`: the values of [`Health`] in Prometheus' text format.
//!
//! Format 0.0.4 (Prometheus documentation, "Exposition formats"): for each metric HELP, TYPE, then its samples. What is not
//! known has no sample, and then neither HELP nor TYPE. The names are an interface, listed in docs/status.md: units last,
//! counters end in `_total`.

use std::fmt::Write as _;

use super::health::Health;

/// The phases, in their order.
const PHASES: [&str; 6] = ["START", "WAIT", "REINDEX", "P2P", "RESTORE", "LIVE"];

/// What kind a metric is.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Gauge,
    Counter,
}

/// Renders all metrics.
pub(super) fn render(health: &Health) -> String {
    let mut text = Text::default();
    let network = health.network.as_deref().unwrap_or("unknown");
    text.family("satgres_build_info", Kind::Gauge, "Version and network of the service; always 1.");
    text.sample("satgres_build_info", &[("version", health.satgres_version), ("network", network)], 1.0);
    gauges(&mut text, health);
    counters(&mut text, health);
    text.family("satgres_phase", Kind::Gauge, "1 for the phase that the service is in, 0 for the others.");
    let other = (!PHASES.contains(&health.phase.as_str())).then_some(health.phase.as_str());
    for phase in PHASES.into_iter().chain(other) {
        text.sample("satgres_phase", &[("phase", phase)], f64::from(u8::from(phase == health.phase)));
    }
    if let Some(jobs) = health.index_jobs {
        text.family("satgres_index_jobs", Kind::Gauge, "Index builds of the loaded segments, by state.");
        for (state, count) in
            [("queued", jobs.queued), ("running", jobs.running), ("done", jobs.done), ("failed", jobs.failed)]
        {
            text.sample("satgres_index_jobs", &[("state", state)], count as f64);
        }
    }
    text.0
}

fn gauges(text: &mut Text, health: &Health) {
    let flag = |is_so| Some(f64::from(u8::from(is_so)));
    let reorg = health.last_reorg.as_ref();
    let height = |height: Option<u32>| height.map(f64::from);
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    let gauges: [(&str, &str, Option<f64>); 26] = [
        ("satgres_alive", "1: the service answers.", flag(health.alive)),
        (
            "satgres_ready",
            "Whether readers may ask: 1, or 0 as long as /health gives 503.",
            flag(health.ready),
        ),
        (
            "satgres_started_timestamp_seconds",
            "When the service began.",
            Some(health.started_timestamp_seconds),
        ),
        (
            "satgres_step_started_timestamp_seconds",
            "When the step that the service is in began.",
            Some(health.step_started_timestamp_seconds),
        ),
        ("satgres_height_blocks", "Height of the tip that readers see.", height(health.height)),
        (
            "satgres_files_height_blocks",
            "Height of the tip of the chain that was chosen.",
            height(health.files_height),
        ),
        (
            "satgres_loading_height_blocks",
            "Height of the last block that was sent to PostgreSQL.",
            height(health.loading_height),
        ),
        (
            "satgres_node_height_blocks",
            "Height of the node's tip, as it told last.",
            height(health.node_height),
        ),
        (
            "satgres_lag_blocks",
            "Blocks that are known and that readers do not see yet.",
            height(health.lag_blocks),
        ),
        ("satgres_eta_seconds", "Estimated time until all that is known can be queried.", health.eta_seconds),
        (
            "satgres_blocks_per_second",
            "Blocks loaded a second, over the last minute.",
            Some(health.blocks_per_second),
        ),
        (
            "satgres_txs_per_second",
            "Transactions loaded a second, over the last minute.",
            Some(health.txs_per_second),
        ),
        (
            "satgres_rows_per_second",
            "Rows loaded a second, over the last minute.",
            Some(health.rows_per_second),
        ),
        (
            "satgres_block_bytes_per_second",
            "Bytes of blocks loaded a second, over the last minute.",
            Some(health.block_bytes_per_second),
        ),
        (
            "satgres_connect_seconds",
            "How long the last block, or the last reorg, took to connect.",
            health.connect_seconds,
        ),
        ("satgres_utxo_cache_coins", "Unspent outputs in the cache.", bytes(health.utxo_cache_coins)),
        (
            "satgres_utxo_cache_bytes",
            "Memory of the cache of unspent outputs.",
            bytes(health.utxo_cache_bytes),
        ),
        (
            "satgres_last_reorg_height_blocks",
            "Height of the last block that both branches of the last reorg share.",
            reorg.map(|reorg| f64::from(reorg.fork_height)),
        ),
        (
            "satgres_last_reorg_depth_blocks",
            "Blocks that the last reorg disconnected.",
            reorg.map(|reorg| f64::from(reorg.depth_blocks)),
        ),
        (
            "satgres_last_reorg_timestamp_seconds",
            "When the last reorg ended.",
            reorg.map(|reorg| reorg.at_timestamp_seconds),
        ),
        (
            "satgres_invalid_blocks",
            "Blocks that were refused because they break a rule.",
            bytes(health.invalid_blocks),
        ),
        (
            "satgres_database_up",
            "Whether PostgreSQL answered when it was last looked at.",
            flag(health.database.state == "up"),
        ),
        (
            "satgres_database_age_seconds",
            "Age of what is told from the database: index jobs, last reorg, size.",
            health.database.age_seconds,
        ),
        ("satgres_database_size_bytes", "Size of the database.", bytes(health.database.size_bytes)),
        ("satgres_resident_memory_bytes", "Resident memory of the service.", bytes(health.resident_bytes)),
        (
            "satgres_utxo_cache_hit_ratio",
            "Share of spends whose output was in the cache, 0 to 1.",
            health.utxo_cache_hit_ratio,
        ),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            text.family(name, Kind::Gauge, help);
            text.sample(name, &[], value);
        }
    }
}

fn counters(text: &mut Text, health: &Health) {
    let counters = [
        (
            "satgres_loaded_blocks_total",
            "Blocks loaded in bulk since the service began.",
            health.loaded_blocks,
        ),
        (
            "satgres_loaded_txs_total",
            "Transactions loaded in bulk since the service began.",
            health.loaded_txs,
        ),
        ("satgres_loaded_rows_total", "Rows loaded in bulk since the service began.", health.loaded_rows),
        (
            "satgres_loaded_block_bytes_total",
            "Bytes of blocks loaded in bulk since the service began.",
            health.loaded_block_bytes,
        ),
        (
            "satgres_connected_blocks_total",
            "Blocks connected one by one since the service began.",
            health.connected_blocks,
        ),
        ("satgres_reorgs_total", "Reorgs followed since the service began.", health.reorgs),
        ("satgres_utxo_cache_hits_total", "Spends whose output was in the cache.", health.utxo_cache_hits),
        (
            "satgres_utxo_cache_misses_total",
            "Spends whose output was not in the cache.",
            health.utxo_cache_misses,
        ),
    ];
    for (name, help, value) in counters {
        text.family(name, Kind::Counter, help);
        text.sample(name, &[], value as f64);
    }
}

/// The text so far.
#[derive(Debug, Default)]
struct Text(String);

impl Text {
    /// Begins a metric; its samples follow.
    fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("a String takes any text");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        writeln!(self.0, "{name}{labels} {value}").expect("a String takes any text");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything is known.
    fn whole() -> Health {
        let state = super::super::tests::state("REINDEX");
        let mut health = Health::new(Some((state, Default::default())), None, 1.0, 2.0);
        health.node_height = Some(1);
        health.connect_seconds = Some(0.1);
        (health.utxo_cache_hit_ratio, health.utxo_cache_coins) = (Some(0.5), Some(1));
        (health.utxo_cache_bytes, health.invalid_blocks) = (Some(1), Some(0));
        (health.eta_seconds, health.resident_bytes) = (Some(1.0), Some(1));
        health.index_jobs = Some(Default::default());
        (health.database.age_seconds, health.database.size_bytes) = (Some(1.0), Some(1));
        health.last_reorg = super::super::tests::report().last_reorg;
        health
    }

    #[test]
    fn every_metric_and_key_is_documented_and_no_other_is() {
        let documented = include_str!("../../docs/operations.md");
        let rows = documented
            .lines()
            .filter(|line| line.contains(" | gauge | ") || line.contains(" | counter | "))
            .filter_map(|line| line.strip_prefix("| `satgres_"));
        let mut documented_names: Vec<String> =
            rows.map(|row| format!("satgres_{}", row.split(['`', '{']).next().unwrap())).collect();
        documented_names.sort_unstable();
        let text = render(&whole());
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let mut names: Vec<String> = types.map(str::to_owned).collect();
        names.sort_unstable();
        assert_eq!(documented_names, names);
        let json = serde_json::to_value(whole()).unwrap();
        for (key, value) in json.as_object().unwrap() {
            let inner = value.as_object().filter(|_| ["index_jobs", "database"].contains(&key.as_str()));
            match inner {
                None => assert!(documented.contains(&format!("`{key}`")), "{key} is not documented"),
                Some(inner) => {
                    for inner in inner.keys() {
                        let (whole, short) = (format!("`{key}.{inner}`"), format!("`.{inner}`"));
                        assert!(documented.contains(&whole) || documented.contains(&short), "{whole}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_known_is_a_sample_and_what_is_not_is_left_out() {
        let mut health = Health::new(None, None, 1_700_000_000.5, 1_700_000_001.0);
        let text = render(&health);
        for line in [
            "# HELP satgres_alive 1: the service answers.\n# TYPE satgres_alive gauge\nsatgres_alive 1\n",
            "\nsatgres_ready 0\n",
            "\nsatgres_started_timestamp_seconds 1700000000.5\n",
            "\n# TYPE satgres_utxo_cache_hits_total counter\nsatgres_utxo_cache_hits_total 0\n",
            "\nsatgres_phase{phase=\"START\"} 1\nsatgres_phase{phase=\"WAIT\"} 0\n",
            "satgres_build_info{version=\"0.1.0\",network=\"unknown\"} 1\n",
        ] {
            assert!(text.contains(line), "no {line:?} in:\n{text}");
        }
        for name in ["satgres_height_blocks", "satgres_index_jobs", "satgres_last_reorg"] {
            assert!(!text.contains(name), "{name} in:\n{text}");
        }
        health.height = Some(840_000);
        health.network = Some("a\\b\"c\nd".to_owned());
        let text = render(&health);
        assert!(text.contains("\nsatgres_height_blocks 840000\n"), "{text}");
        assert!(text.contains(r#"network="a\\b\"c\nd""#), "{text}");
    }
}
