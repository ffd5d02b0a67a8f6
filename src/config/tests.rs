//! Layers, defaults, and the file that is shipped.

use super::*;

fn typed(values: &[(&'static str, &str)]) -> LowArgs {
    LowArgs { config: None, values: values.iter().map(|(key, text)| (*key, (*text).to_owned())).collect() }
}

fn resolve(typed: &LowArgs, env: &[(&str, &str)], file: Option<&str>) -> Result<Settings, (Error, PathBuf)> {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("some.toml");
    let mut typed = typed.clone();
    if let Some(text) = file {
        std::fs::write(&path, text).unwrap();
        typed.config = Some(path.clone());
    }
    let look_up =
        |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    Settings::resolve_in(&typed, &look_up).map_err(|error| (error, path))
}

#[test]
fn typed_wins_over_environment_over_file_over_default() {
    let file = "[replay]\nsegment_bytes = \"1GiB\"\nthreads = 3\nbatch_bytes = 1000\n";
    let env = [("SATGRES_SEGMENT_BYTES", "2GiB"), ("SATGRES_THREADS", "5")];
    let settings = resolve(&typed(&[("replay.segment_bytes", "3GiB")]), &env, Some(file)).unwrap();
    assert_eq!(settings.replay.segment_bytes, 3_221_225_472);
    assert_eq!(settings.replay.threads, Some(5));
    assert_eq!(settings.replay.batch_bytes, 1000);
    assert_eq!(settings.replay.pipeline_bytes, None);
    assert_eq!(settings.origins["replay.segment_bytes"].to_string(), "--segment-bytes");
    assert_eq!(settings.origins["replay.threads"].to_string(), "SATGRES_THREADS");
    assert!(settings.origins["replay.batch_bytes"].to_string().ends_with("some.toml, replay.batch_bytes"));
    assert!(!settings.origins.contains_key("replay.pipeline_bytes"));
}

#[test]
fn the_environment_knows_both_names_of_a_grouped_option() {
    let long = [("SATGRES_REPLAY_SEGMENT_BYTES", "64KiB"), ("SATGRES_STORE_WITNESS", "none")];
    let settings = resolve(&typed(&[]), &long, None).unwrap();
    assert_eq!(settings.replay.segment_bytes, 65_536);
    assert_eq!(settings.store, StoreSettings { witness: Detail::None, script_sig: Detail::Full });
    let both = [("SATGRES_REPLAY_SEGMENT_BYTES", "64KiB"), ("SATGRES_SEGMENT_BYTES", "1KiB")];
    assert_eq!(resolve(&typed(&[]), &both, None).unwrap().replay.segment_bytes, 1024);
    // A variable that is set to nothing is not set.
    assert_eq!(resolve(&typed(&[]), &[("SATGRES_NETWORK", "")], None).unwrap().network, Network::Main);
}

#[test]
fn the_networks_have_their_own_block_directories() {
    let dir = |network| {
        let settings = resolve(&typed(&[("network", network)]), &[], None).unwrap();
        settings.blocks_dir.strip_prefix(std::env::home_dir().unwrap()).unwrap().to_owned()
    };
    assert_eq!(dir("main"), Path::new(".bitcoin/blocks"));
    assert_eq!(dir("test"), Path::new(".bitcoin/testnet3/blocks"));
    assert_eq!(dir("testnet4"), Path::new(".bitcoin/testnet4/blocks"));
    assert_eq!(dir("signet"), Path::new(".bitcoin/signet/blocks"));
    assert_eq!(dir("regtest"), Path::new(".bitcoin/regtest/blocks"));
}

#[test]
fn the_plan_hears_what_was_given_and_where() {
    let file = "tune = \"off\"\n[live]\ntxnum_cache_buckets = 3\n[replay]\nutxo_cache = \"auto\"\n";
    let env = [("SATGRES_UTXO_CACHE", "1GiB")];
    let settings = resolve(&typed(&[("replay.threads", "auto")]), &env, Some(file)).unwrap();
    let overrides = settings.overrides();
    assert_eq!(overrides.utxo_cache_bytes, Some(Found::new(1_073_741_824, "SATGRES_UTXO_CACHE")));
    let buckets = overrides.txnum_cache_buckets.unwrap();
    assert!(buckets.value == 3 && buckets.source.ends_with("some.toml, live.txnum_cache_buckets"));
    assert_eq!((overrides.txnum_cache_bucket_size, overrides.threads), (None, None));
    assert_eq!(overrides.pipeline_bytes, None);
    assert_eq!(settings.tune, Tune::Off);
    assert_eq!(resolve(&typed(&[]), &[], None).unwrap().overrides(), Overrides::default());
}

#[test]
fn paths_are_made_absolute_and_the_home_directory_is_put_in() {
    let settings = resolve(&typed(&[("data_dir", "here"), ("blocks_dir", "~/there")]), &[], None).unwrap();
    assert_eq!(settings.data_dir, std::env::current_dir().unwrap().join("here"));
    assert_eq!(settings.blocks_dir, std::env::home_dir().unwrap().join("there"));
}

#[test]
fn a_wrong_value_is_reported_with_its_origin() {
    let (error, _) = resolve(&typed(&[("replay.segment_bytes", "2GB")]), &[], None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--segment-bytes: \"2GB\" is no valid value: unknown unit \"GB\": use KiB, MiB, GiB or TiB (binary), or plain bytes"
    );
    let (error, _) = resolve(&typed(&[]), &[("SATGRES_NETWORK", "bitcoin")], None).unwrap_err();
    assert!(error.to_string().starts_with("SATGRES_NETWORK: \"bitcoin\" is no valid value"), "{error}");
    let (error, path) = resolve(&typed(&[]), &[], Some("[store]\nwitness = \"some\"\n")).unwrap_err();
    let expected = format!("{}, store.witness: \"some\" is no valid value: use full or none", path.display());
    assert_eq!(error.to_string(), expected);
    let (error, _) = resolve(&typed(&[("replay.batch_bytes", "0")]), &[], None).unwrap_err();
    assert!(error.to_string().contains("more than 0"), "{error}");
}

#[test]
fn an_unknown_key_is_reported_with_file_and_key() {
    let (error, path) = resolve(&typed(&[]), &[], Some("[replay]\nsegment_byte = 1\n")).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&path.display().to_string()) && text.contains("`segment_byte`"), "{text}");
    assert!(text.contains("line 2"), "{text}");
    let typed = LowArgs { config: Some("/nonexistent/x.toml".into()), ..LowArgs::default() };
    let (error, _) = resolve(&typed, &[], None).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/x.toml"), "{error}");
}

#[test]
fn every_option_is_listed_with_its_value_and_origin() {
    let settings = resolve(&typed(&[("network", "regtest")]), &[], None).unwrap();
    let listing = settings.listing();
    assert_eq!(listing.len(), OPTIONS.len());
    assert_eq!((listing[0].1.as_str(), &listing[0].2), ("regtest", &Origin::Typed("--network".to_owned())));
    let segment = listing.iter().find(|(option, _, _)| option.key == "replay.segment_bytes").unwrap();
    assert_eq!((segment.1.as_str(), &segment.2), ("50GiB", &Origin::Default));
}

/// The shipped file shows every option, commented out, with its default and why; uncommented it means the same.
#[test]
fn the_shipped_file_shows_every_option() {
    let mut expected = String::from(
        "# Settings of satgres: every option, commented out, with its default. This file is read where satgres finds it\n\
         # as config/satgres.toml in its working directory, or by --config FILE. The command line wins over SATGRES_*\n\
         # in the environment, which wins over this file. Sizes: 512MiB, 2GiB, or plain bytes.\n",
    );
    let mut table = "";
    for option in OPTIONS {
        let (of, name) = option.key.split_once('.').unwrap_or(("", option.key));
        if of != table {
            table = of;
            expected.push_str(&format!("\n[{table}]\n"));
        }
        expected.push_str(&format!("\n# {}\n#{name} = {}\n", option.why, option.default));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DEFAULT_FILE);
    if std::env::var_os("SATGRES_WRITE_EXPECTED").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);

    let uncommented: String = expected
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        .map(|line| format!("{line}\n"))
        .collect();
    let from_file = resolve(&typed(&[]), &[], Some(&uncommented)).unwrap();
    let default = resolve(&typed(&[]), &[], None).unwrap();
    assert_eq!(from_file.origins.len(), OPTIONS.len());
    assert_eq!((from_file.replay, from_file.store), (default.replay, default.store));
    assert_eq!((from_file.network, from_file.blocks_dir), (default.network, default.blocks_dir));
    assert_eq!((from_file.until_synced, from_file.log), (default.until_synced, default.log));
}
