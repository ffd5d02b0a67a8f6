//! The TOML file: known keys only, values as text for the one parser of each option.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{Error, Origin};

/// A value: sizes and counts may be written as numbers, switches as booleans.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string, a whole number or true/false")]
enum Scalar {
    Switch(bool),
    Number(i64),
    Text(String),
}

impl Scalar {
    fn into_text(self) -> String {
        match self {
            Scalar::Switch(value) => value.to_string(),
            Scalar::Number(value) => value.to_string(),
            Scalar::Text(value) => value,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    network: Option<Scalar>,
    blocks_dir: Option<Scalar>,
    peer: Option<Scalar>,
    peer_timeout_seconds: Option<Scalar>,
    data_dir: Option<Scalar>,
    database_url: Option<Scalar>,
    pg_bin: Option<Scalar>,
    tune: Option<Scalar>,
    until_synced: Option<Scalar>,
    log: Option<Scalar>,
    replay: Option<Replay>,
    live: Option<Live>,
    store: Option<Store>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Replay {
    segment_bytes: Option<Scalar>,
    threads: Option<Scalar>,
    batch_bytes: Option<Scalar>,
    pipeline_bytes: Option<Scalar>,
    utxo_cache: Option<Scalar>,
    utxo_cache_buckets: Option<Scalar>,
    disk_check: Option<Scalar>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Live {
    sync_threshold_blocks: Option<Scalar>,
    txnum_cache_buckets: Option<Scalar>,
    txnum_cache_bucket_size: Option<Scalar>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Store {
    witness: Option<Scalar>,
    script_sig: Option<Scalar>,
}

/// Reads a file into text by key.
///
/// # Errors
/// [`Error::Read`], [`Error::File`] with line and key.
pub(super) fn read(path: &Path) -> Result<BTreeMap<&'static str, (String, Origin)>, Error> {
    let text =
        std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<BTreeMap<&'static str, (String, Origin)>, Error> {
    let file: File = toml::from_str(text)
        .map_err(|error| Error::File { path: PathBuf::from(path), reason: error.to_string() })?;
    let replay = file.replay.unwrap_or_default();
    let live = file.live.unwrap_or_default();
    let store = file.store.unwrap_or_default();
    let values = [
        ("network", file.network),
        ("blocks_dir", file.blocks_dir),
        ("peer", file.peer),
        ("peer_timeout_seconds", file.peer_timeout_seconds),
        ("data_dir", file.data_dir),
        ("database_url", file.database_url),
        ("pg_bin", file.pg_bin),
        ("tune", file.tune),
        ("until_synced", file.until_synced),
        ("log", file.log),
        ("replay.segment_bytes", replay.segment_bytes),
        ("replay.threads", replay.threads),
        ("replay.batch_bytes", replay.batch_bytes),
        ("replay.pipeline_bytes", replay.pipeline_bytes),
        ("replay.utxo_cache", replay.utxo_cache),
        ("replay.utxo_cache_buckets", replay.utxo_cache_buckets),
        ("replay.disk_check", replay.disk_check),
        ("live.sync_threshold_blocks", live.sync_threshold_blocks),
        ("live.txnum_cache_buckets", live.txnum_cache_buckets),
        ("live.txnum_cache_bucket_size", live.txnum_cache_bucket_size),
        ("store.witness", store.witness),
        ("store.script_sig", store.script_sig),
    ];
    let given = values.into_iter().filter_map(|(key, value)| {
        let origin = Origin::File(path.to_owned(), key.to_owned());
        Some((key, (value?.into_text(), origin)))
    });
    Ok(given.collect())
}
