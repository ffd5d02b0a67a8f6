//! Real chains, loaded by the built binary, equal what a real node says about them, field by field.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::{BTreeMap, HashMap};

use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::{Hash, HashEngine, sha256d};
use bitcoin::{VarInt, Witness};

use support::Satgres;
use support::ground_truth::{self, BlockStats, GroundTruth, Script};
use support::model::{self, Model};
use support::rows::{self, BlockRow, InputRow, OutputRow, Rows, TransactionRow, hex, unhex, unhex_hash};

/// A block that the node refused stands in the files of `regtest`, but not in the small ones.
const REFUSED: &str = "7d4eda750957c6a210e3b31d7bfc524dbdd4ff377899355454f255f7f394d42e";
/// Puts dozens of segments into chains of three megabytes.
const TINY_SEGMENTS: [&str; 2] = ["--segment-bytes", "64KiB"];
const GIB: u64 = 1 << 30;

#[test]
fn regtest_equals_the_node() {
    let Some(truth) = GroundTruth::open("regtest", "regtest/blocks", "regtest") else { return };
    let Some(small_files) = GroundTruth::open("regtest-small-files", "regtest/blocks", "regtest") else {
        return;
    };
    let satgres = Satgres::new();

    satgres.run("regtest", &truth.blocks_dir(), &[]);
    assert_equals_node(&satgres, &truth);
    assert_addresses(&satgres, &truth);
    let digest = satgres.digest();

    satgres.forget_chain();
    satgres.run("regtest", &truth.blocks_dir(), &TINY_SEGMENTS);
    assert!(segment_count(&satgres) > 24, "{} segments", segment_count(&satgres));
    assert_eq!(satgres.digest(), digest, "tiny segments");
    assert_equals_node(&satgres, &truth);

    satgres.forget_chain();
    satgres.run("regtest", &small_files.blocks_dir(), &[]);
    assert_eq!(satgres.digest(), digest, "28 small files");
    let stale: Vec<_> =
        small_files.stale_blocks().into_iter().filter(|block| block.hash != REFUSED).collect();
    assert_eq!(stale.len(), 11);
    assert_stale_blocks(&satgres, &stale);

    satgres.forget_chain();
    satgres.run("regtest", &small_files.blocks_dir(), &TINY_SEGMENTS);
    assert_eq!(satgres.digest(), digest, "28 small files, tiny segments");
}

#[test]
fn mainnet_equals_the_node() {
    let Some(truth) = GroundTruth::open("mainnet-0-4312", "blocks", "mainnet-0-4312") else { return };
    let satgres = Satgres::new();

    let finished = satgres.run("main", &truth.blocks_dir(), &[]);
    let output = finished.output();
    assert!(last_profile_line(&output).ends_with(" 4312"), "{}", last_profile_line(&output));
    assert_equals_node(&satgres, &truth);
    assert_addresses(&satgres, &truth);
    let digest = satgres.digest();

    satgres.forget_chain();
    satgres.run("main", &truth.blocks_dir(), &TINY_SEGMENTS);
    assert!(segment_count(&satgres) > 12, "{} segments", segment_count(&satgres));
    assert_eq!(satgres.digest(), digest, "tiny segments");
    assert_equals_node(&satgres, &truth);
}

/// The other tests compare hand-made chains with the model, so the model itself must be right.
#[test]
fn the_model_of_the_tests_equals_the_node() {
    let Some(truth) = GroundTruth::open("regtest", "regtest/blocks", "regtest") else { return };
    let blocks = truth.blocks();
    let want = expected_rows(&blocks, &truth);
    let mut model = Model::default();
    for block in &blocks {
        model.connect(&decode_block(block));
    }
    let got = model.rows();
    assert_eq!(format!("{:#?}", got.blocks), format!("{:#?}", want.blocks));
    assert_eq!(format!("{:?}", got.transactions), format!("{:?}", want.transactions));
    assert_eq!(format!("{:?}", got.outputs), format!("{:?}", want.outputs));
    assert_eq!(format!("{:?}", got.inputs), format!("{:?}", want.inputs));
    assert_eq!(format!("{:?}", got.utxos), format!("{:?}", want.utxos));
    assert!(got.overwritten.is_empty());
}

fn assert_equals_node(satgres: &Satgres, truth: &GroundTruth) {
    let blocks = truth.blocks();
    rows::assert_chain(satgres, &expected_rows(&blocks, truth));
    assert_names(satgres, &blocks);
    assert_utxo_set(satgres, truth);
    assert_utxo_totals(satgres, truth);
    assert_block_stats(satgres, truth);
    assert_stale_blocks(satgres, &truth.stale_blocks());
    satgres.verify();
    let peak_rss_bytes: u64 = satgres.value("select max(peak_rss_bytes) from ops.phases").parse().unwrap();
    assert!((1..GIB).contains(&peak_rss_bytes), "peak RSS of {peak_rss_bytes} bytes");
}

/// The node's answers as rows of our tables.
fn expected_rows(blocks: &[ground_truth::Block], truth: &GroundTruth) -> Rows {
    let mut rows = Rows::default();
    // A txid can stand in several blocks, but only once in each.
    let mut tx_nums = HashMap::new();
    for block in blocks {
        for (tx_num, transaction) in numbered(block) {
            tx_nums.insert((block.height, transaction.txid.as_str()), tx_num);
        }
        expect_block(&mut rows, block, &tx_nums);
    }
    for line in truth.utxo_set() {
        let fields: Vec<&str> = line.split(',').collect();
        let [txid, vout, value, coinbase, height, script] = fields[..] else { panic!("{line}") };
        let tx_num = tx_nums[&(height.parse().unwrap(), txid)];
        assert_eq!(coinbase == "1", tx_num & 0xffff == 0, "{line}");
        let (vout, value) = (vout.parse().unwrap(), value.parse().unwrap());
        rows.utxos.push(OutputRow { tx_num, vout, value, script: unhex(script) });
    }
    rows.utxos.sort_by_key(|coin| (coin.tx_num, coin.vout));
    rows
}

fn expect_block(rows: &mut Rows, block: &ground_truth::Block, tx_nums: &HashMap<(u32, &str), i64>) {
    for (tx_num, transaction) in numbered(block) {
        rows.transactions.push(TransactionRow {
            tx_num,
            fee: transaction.fee.map(|fee| i64::try_from(fee.0).unwrap()),
            locktime: transaction.locktime,
            version: transaction.version,
            size: transaction.size,
            weight: transaction.weight,
            input_count: transaction.vin.len(),
            output_count: transaction.vout.len(),
            txid: unhex_hash(&transaction.txid),
        });
        for output in &transaction.vout {
            let (vout, value, script) = (output.n, output.value.0, output.script_pubkey.bytes());
            rows.outputs.push(OutputRow { tx_num, vout, value, script });
        }
        rows.inputs.extend(
            (0..).zip(&transaction.vin).map(|(vin, input)| expected_input(tx_num, vin, input, tx_nums)),
        );
    }
    let fees = block.tx.iter().filter_map(|tx| tx.fee).map(|fee| i64::try_from(fee.0).unwrap()).sum();
    let claimed: u64 = block.tx[0].vout.iter().map(|output| output.value.0).sum();
    let subsidy = i64::try_from(subsidy(block)).unwrap();
    rows.blocks.push(BlockRow {
        height: block.height,
        hash: unhex_hash(&block.hash),
        version: block.version,
        merkle_root: unhex_hash(&block.merkleroot),
        time: block.time,
        median_time: block.mediantime,
        bits: u32::from_str_radix(&block.bits, 16).unwrap(),
        nonce: block.nonce,
        size: block.size,
        weight: block.weight,
        tx_count: block.tx_count,
        input_count: block.tx.iter().map(|tx| tx.vin.len()).sum(),
        output_count: block.tx.iter().map(|tx| tx.vout.len()).sum(),
        fees,
        subsidy,
        unclaimed: subsidy + fees - i64::try_from(claimed).unwrap(),
        chainwork: block.chainwork.clone(),
    });
}

fn expected_input(
    tx_num: i64,
    vin: u32,
    input: &ground_truth::Input,
    tx_nums: &HashMap<(u32, &str), i64>,
) -> InputRow {
    let prevout = input.prevout.as_ref().map(|prevout| {
        let prev_tx_num = tx_nums[&(prevout.height, input.txid.as_deref().unwrap())];
        assert_eq!(prevout.generated, prev_tx_num & 0xffff == 0);
        let (vout, value, script) = (input.vout.unwrap(), prevout.value.0, prevout.script_pubkey.bytes());
        OutputRow { tx_num: prev_tx_num, vout, value, script }
    });
    let script_sig = input.coinbase.as_ref().or_else(|| Some(&input.script_sig.as_ref()?.hex)).unwrap();
    let items: Vec<Vec<u8>> = input.txinwitness.iter().map(|item| unhex(item)).collect();
    let witness = if items.is_empty() { Vec::new() } else { serialize(&Witness::from_slice(&items)) };
    InputRow { tx_num, vin, prevout, sequence: input.sequence, script_sig: unhex(script_sig), witness }
}

/// Hashes, types and addresses as people read them, from the views of the schema, and transactions as bytes.
fn assert_names(satgres: &Satgres, blocks: &[ground_truth::Block]) {
    let (mut heights, mut transactions, mut wtxids) = (Vec::new(), Vec::new(), Vec::new());
    let (mut outputs, mut inputs) = (Vec::new(), Vec::new());
    for block in blocks {
        let previous = block.previousblockhash.as_deref().unwrap_or(rows::NULL);
        heights.push(format!("{}\t{}\t{previous}\t{}", block.height, block.hash, block.strippedsize));
        for (tx_num, tx) in numbered(block) {
            let is_coinbase = if tx_num & 0xffff == 0 { "t" } else { "f" };
            let (height, txid, vsize) = (block.height, &tx.txid, tx.vsize);
            transactions.push(format!("{tx_num}\t{height}\t{txid}\t{vsize}\t{is_coinbase}\t{}", tx.hex));
            wtxids.extend((tx_num & 0xffff < 5).then(|| format!("{tx_num}\t{}", tx.hash)));
            for output in &tx.vout {
                let flag = if is_unspendable(height, &output.script_pubkey) { "t" } else { "f" };
                let described = describe(&output.script_pubkey);
                outputs.push(format!("{tx_num}\t{}\t{txid}\t{described}\t{flag}", output.n));
            }
            inputs.extend(
                tx.vin.iter().enumerate().map(|(vin, input)| describe_input(tx_num, vin, txid, input)),
            );
        }
    }
    let got = satgres
        .copy("select height, hash, previous_hash, (weight - size) / 3 from api.blocks order by height");
    rows::compare("api.blocks", &got, heights.into_iter());
    let got = satgres.copy(
        "select tx_num, height, txid, vsize, is_coinbase, encode(chain.raw_transaction(tx_num), 'hex') \
         from api.transactions order by tx_num",
    );
    rows::compare("api.transactions", &got, transactions.into_iter());
    // The bytes above say all that a wtxid can; a few of each block show that its function is right.
    let got = satgres.copy(
        "select tx_num, chain.txid_hex(chain.wtxid(tx_num)) from chain.transactions \
         where tx_num & 65535 < 5 order by tx_num",
    );
    rows::compare("wtxids", &got, wtxids.into_iter());
    let got = satgres.copy(
        "select tx_num, vout, txid, type, address, is_unspendable from api.outputs order by tx_num, vout",
    );
    rows::compare("api.outputs", &got, outputs.into_iter());
    let got = satgres.copy(
        "select tx_num, vin, txid, prev_txid, prev_vout, prev_height, type, address, \
         (select string_agg(encode(item, 'hex'), ',' order by n) from unnest(witness) with ordinality as items (item, n)) \
         from api.inputs order by tx_num, vin",
    );
    rows::compare("api.inputs", &got, inputs.into_iter());
}

fn describe_input(tx_num: i64, vin: usize, txid: &str, input: &ground_truth::Input) -> String {
    let prevout = match (&input.txid, input.vout, &input.prevout) {
        (Some(txid), Some(vout), Some(prevout)) => {
            format!("{txid}\t{vout}\t{}\t{}", prevout.height, describe(&prevout.script_pubkey))
        }
        _ => [rows::NULL; 5].join("\t"),
    };
    let items =
        if input.txinwitness.is_empty() { rows::NULL.to_owned() } else { input.txinwitness.join(",") };
    format!("{tx_num}\t{vin}\t{txid}\t{prevout}\t{items}")
}

fn describe(script: &Script) -> String {
    format!("{}\t{}", script.kind, script.address.as_deref().unwrap_or(rows::NULL))
}

fn is_unspendable(height: u32, script: &Script) -> bool {
    height == 0 || script.hex.starts_with("6a") || script.hex.len() > 20_000
}

/// Every address leads to its script and to the sum of its coins, and back.
fn assert_addresses(satgres: &Satgres, truth: &GroundTruth) {
    let blocks = truth.blocks();
    let scripts =
        blocks.iter().flat_map(|block| &block.tx).flat_map(|tx| &tx.vout).map(|output| &output.script_pubkey);
    let addresses: BTreeMap<&str, &str> =
        scripts.filter_map(|script| Some((script.address.as_deref()?, script.hex.as_str()))).collect();
    let mut balances: HashMap<&str, u64> = HashMap::new();
    let utxo_set = truth.utxo_set();
    for line in &utxo_set {
        let fields: Vec<&str> = line.split(',').collect();
        *balances.entry(fields[5]).or_default() += fields[2].parse::<u64>().unwrap();
    }
    let got = satgres.copy(
        "select address, encode(chain.address_script(address), 'hex'), balance \
         from (select distinct address collate \"C\" as address from api.outputs where address is not null) o, \
         lateral api.address_balance(address) order by address",
    );
    let line = |(address, script): (&&str, &&str)| {
        format!("{address}\t{script}\t{}", balances.get(script).unwrap_or(&0))
    };
    rows::compare("addresses", &got, addresses.iter().map(line));
}

/// The set of unspent outputs, row by row and by the hash that gettxoutsetinfo computes.
fn assert_utxo_set(satgres: &Satgres, truth: &GroundTruth) {
    let got = satgres.copy(
        "select concat_ws(',', chain.txid_hex(t.txid), u.vout, u.value, \
         (u.tx_num & 65535 = 0)::int, t.height, encode(u.script, 'hex')) \
         from chain.utxos u join chain.transactions t using (tx_num) \
         order by chain.txid_hex(t.txid) collate \"C\", u.vout",
    );
    rows::compare("UTXO set", &got, truth.utxo_set().into_iter());

    let summary = truth.summary();
    let tip = satgres.copy("select height, hash from api.blocks order by height desc limit 1");
    assert_eq!(tip, [format!("{}\t{}", summary.tip_height, summary.tip)]);
    let coins: Vec<Vec<String>> =
        got.iter().map(|line| line.split(',').map(str::to_owned).collect()).collect();
    assert_eq!(coins.len(), summary.hash_serialized_3.txouts);
    assert_eq!(
        coins.iter().map(|coin| coin[2].parse::<u64>().unwrap()).sum::<u64>(),
        summary.hash_serialized_3.total_amount.0
    );
    assert_eq!(hash_serialized_3(&coins), summary.hash_serialized_3.hash_serialized_3);
}

/// sha256d over the coins in order of txid bytes and vout: outpoint, height * 2 + coinbase, value, script.
fn hash_serialized_3(coins: &[Vec<String>]) -> String {
    let mut sorted = BTreeMap::new();
    for coin in coins {
        let [txid, vout, value, coinbase, height, script] = &coin[..] else { panic!("{coin:?}") };
        let (txid, vout, script) = (unhex_hash(txid), vout.parse::<u32>().unwrap(), unhex(script));
        let code = height.parse::<u32>().unwrap() * 2 + coinbase.parse::<u32>().unwrap();
        let mut bytes = [txid.as_slice(), &vout.to_le_bytes(), &code.to_le_bytes()].concat();
        bytes.extend(value.parse::<i64>().unwrap().to_le_bytes());
        bytes.extend(serialize(&VarInt::from(script.len())));
        bytes.extend(script);
        sorted.insert((txid, vout), bytes);
    }
    let mut engine = sha256d::Hash::engine();
    sorted.values().for_each(|bytes| engine.input(bytes));
    sha256d::Hash::from_engine(engine).to_string()
}

/// Count and amount of the unspent outputs at every height by adding up, and at a few by looking back from the tip.
fn assert_utxo_totals(satgres: &Satgres, truth: &GroundTruth) {
    const SPENDABLE: &str =
        "o.tx_num <> 0 and substr(o.script, 1, 1) <> '\\x6a'::bytea and octet_length(o.script) <= 10000";
    let line = |totals: &ground_truth::UtxoTotals| {
        let (amount, unspendable) = (totals.total_amount.0, totals.total_unspendable_amount.0);
        format!("{}\t{}\t{amount}\t{unspendable}", totals.height, totals.txouts)
    };
    let totals = truth.utxo_totals();
    let got = satgres.copy(&format!(
        "select height, sum(made - spent) over by_height, sum(credits - debits) over by_height, \
         sum(subsidy - credits + debits) over by_height \
         from chain.blocks \
         left join lateral (select count(*) made, coalesce(sum(value), 0) credits from chain.outputs o \
             where o.tx_num >= chain.first_tx_num(height) and o.tx_num < chain.first_tx_num(height + 1) \
               and {SPENDABLE}) made on true \
         left join lateral (select count(i.value) spent, coalesce(sum(i.value), 0) debits from chain.inputs i \
             where i.tx_num >= chain.first_tx_num(height) and i.tx_num < chain.first_tx_num(height + 1)) spent on true \
         window by_height as (order by height) order by height"
    ));
    rows::compare("UTXO totals by height", &got, totals.iter().map(line));

    let tip = totals.len() - 1;
    for height in [0, 1, tip / 4, tip / 3, tip / 2, tip - 1, tip] {
        let got = satgres.copy(&format!(
            "select {height}, count(*), coalesce(sum(value), 0), \
             (select sum(subsidy) from chain.blocks where height <= {height}) - coalesce(sum(value), 0) \
             from chain.outputs o where o.tx_num < chain.first_tx_num({height} + 1) and {SPENDABLE} \
             and not exists (select from chain.inputs i where i.prev_tx_num = o.tx_num and i.prev_vout = o.vout \
                 and i.tx_num < chain.first_tx_num({height} + 1))"
        ));
        assert_eq!(got, [line(&totals[height])]);
    }
}

/// getblockstats, computed from the tables.
fn assert_block_stats(satgres: &Satgres, truth: &GroundTruth) {
    let got = satgres.copy(
        "with sized_outputs as ( \
             select tx_num, vout, value, 48 + octet_length(script) \
                 + case when octet_length(script) < 253 then 1 when octet_length(script) < 65536 then 3 else 5 end as bytes, \
                 substr(script, 1, 1) = '\\x6a'::bytea or octet_length(script) > 10000 as is_unspendable \
             from chain.outputs), \
         made as ( \
             select chain.height(tx_num) as height, sum(value) filter (where tx_num & 65535 <> 0) as total_out, \
                 sum(bytes) as bytes, count(*) filter (where not is_unspendable) as spendable, \
                 sum(bytes) filter (where not is_unspendable) as spendable_bytes \
             from sized_outputs group by 1), \
         spent as ( \
             select chain.height(i.tx_num) as height, sum(o.bytes) as bytes \
             from chain.inputs i join sized_outputs o on o.tx_num = i.prev_tx_num and o.vout = i.prev_vout group by 1), \
         paid as ( \
             select height, max(fee) as maxfee, min(fee) as minfee, max(fee * 4 / weight) as maxfeerate, \
                 min(fee * 4 / weight) as minfeerate, max(size) as maxtxsize, min(size) as mintxsize, \
                 sum(size) as size, sum(weight) as weight, count(*) filter (where weight < 4 * size) as swtxs, \
                 sum(size) filter (where weight < 4 * size) as swsize, \
                 sum(weight) filter (where weight < 4 * size) as swweight \
             from chain.transactions where tx_num & 65535 <> 0 group by 1) \
         select coalesce(json_build_object('height', height, 'avgfee', case when tx_count > 1 then fees / (tx_count - 1) else 0 end, \
             'avgfeerate', coalesce(fees * 4 / p.weight, 0)::bigint, \
             'avgtxsize', case when tx_count > 1 then p.size / (tx_count - 1) else 0 end, \
             'ins', input_count - 1, 'maxfee', coalesce(maxfee, 0), 'maxfeerate', coalesce(maxfeerate, 0), \
             'maxtxsize', coalesce(maxtxsize, 0), 'minfee', coalesce(minfee, 0), 'minfeerate', coalesce(minfeerate, 0), \
             'mintxsize', coalesce(mintxsize, 0), 'outs', output_count, 'subsidy', subsidy, \
             'swtotal_size', coalesce(swsize, 0), 'swtotal_weight', coalesce(swweight, 0), 'swtxs', coalesce(swtxs, 0), \
             'total_out', coalesce(total_out, 0), 'total_size', coalesce(p.size, 0), 'total_weight', coalesce(p.weight, 0), \
             'totalfee', fees, 'txs', tx_count, 'utxo_increase', output_count - (input_count - 1), \
             'utxo_size_inc', m.bytes - coalesce(s.bytes, 0), 'utxo_increase_actual', spendable - (input_count - 1), \
             'utxo_size_inc_actual', coalesce(spendable_bytes, 0) - coalesce(s.bytes, 0))) \
         from chain.blocks left join made m using (height) left join spent s using (height) left join paid p using (height) \
         where height > 0 order by height",
    );
    let want = truth.block_stats();
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(&want) {
        let got: BlockStats = serde_json::from_str(got).unwrap_or_else(|error| panic!("{error}: {got}"));
        assert_eq!(got, *want);
    }
}

fn assert_stale_blocks(satgres: &Satgres, stale: &[ground_truth::StaleBlock]) {
    let mut got =
        satgres.copy("select encode(hash, 'hex'), height, encode(header, 'hex') from chain.stale_blocks");
    got.sort();
    let line = |block: &ground_truth::StaleBlock| {
        format!("{}\t{}\t{}", hex(&unhex_hash(&block.hash)), block.height, &block.hex[..160])
    };
    let mut want: Vec<String> = stale.iter().map(line).collect();
    want.sort();
    rows::compare("stale blocks", &got, want.into_iter());
}

fn numbered(block: &ground_truth::Block) -> impl Iterator<Item = (i64, &ground_truth::Transaction)> {
    ((i64::from(block.height) << 16)..).zip(&block.tx)
}

/// By the difficulty one can tell regtest, which halves every 150 blocks, from mainnet, which did not in our data.
fn subsidy(block: &ground_truth::Block) -> u64 {
    if block.bits == "207fffff" { model::subsidy(block.height) } else { 5_000_000_000 }
}

fn decode_block(block: &ground_truth::Block) -> bitcoin::Block {
    let transactions = block.tx.iter().map(|tx| bitcoin::consensus::deserialize(&unhex(&tx.hex)).unwrap());
    let txdata: Vec<bitcoin::Transaction> = transactions.collect();
    let header = bitcoin::block::Header {
        version: bitcoin::block::Version::from_consensus(block.version),
        prev_blockhash: block
            .previousblockhash
            .as_ref()
            .map_or_else(bitcoin::BlockHash::all_zeros, |hash| hash.parse().unwrap()),
        merkle_root: block.merkleroot.parse().unwrap(),
        time: block.time,
        bits: bitcoin::CompactTarget::from_consensus(u32::from_str_radix(&block.bits, 16).unwrap()),
        nonce: block.nonce,
    };
    bitcoin::Block { header, txdata }
}

fn segment_count(satgres: &Satgres) -> usize {
    satgres.value("select count(*) from ops.segments where state = 'attached'").parse().unwrap()
}

fn last_profile_line(output: &str) -> &str {
    output.lines().rfind(|line| line.contains("PROFILE: Entered LIVE sync")).unwrap()
}
