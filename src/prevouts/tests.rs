//! The whole set, with its files, against a plain map: random chains of batches under tiny budgets.
//!
//! A chain is made of random blocks with coinbases repeated byte for byte (BIP30 twins), their spends repeated too, and
//! now and then a broken rule. The plain map applies the rules one spend at a time. Both must agree on every coin, fee,
//! reward and overwritten output, on the first broken rule, and on the coins that are left, whatever the budget, the
//! places of the settlements, and however often the set is dropped and resumed from a checkpoint, or blocks are
//! disconnected down to an earlier one and others connected in their place.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::entry::{outpoint, unpack};
use super::resolve::BrokenRule;
use super::*;
use crate::chain::batch::{Batch, Block, Input, Output, Overwritten, Tx, WAITS, tx_num};
use crate::chain::hash::{Hash32, sha256d};
use crate::network::Network;

type OutPoint = (Hash32, u32);

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end.max(1)
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// A transaction as the plain map sees it; no inputs make a coinbase.
#[derive(Clone, Debug)]
struct PlainTx {
    inputs: Vec<OutPoint>,
    /// Value, and whether it can be spent.
    outputs: Vec<(u64, bool)>,
    nonce: u64,
}

impl PlainTx {
    fn txid(&self) -> Hash32 {
        sha256d(format!("{self:?}").as_bytes())
    }

    fn script_hash(&self, vout: usize) -> [u8; 16] {
        sha256d(&[&self.txid()[..], &[vout as u8]].concat())[..16].try_into().unwrap()
    }
}

#[derive(Clone, Debug)]
struct PlainBlock {
    height: u32,
    txs: Vec<PlainTx>,
}

/// All facts of a chain.
#[derive(Clone, Debug, Default, PartialEq)]
struct Facts {
    inputs: BTreeMap<(i64, u32), Coin>,
    fees: BTreeMap<i64, u64>,
    blocks: BTreeMap<u32, (u64, u64)>,
    overwritten: Vec<Overwritten>,
}

/// The rules, one spend at a time.
#[derive(Clone, Debug, Default)]
struct Model {
    coins: BTreeMap<OutPoint, Coin>,
    facts: Facts,
}

impl Model {
    fn connect(&mut self, block: &PlainBlock) -> Result<(), ResolveError> {
        let height = block.height;
        let mut fees_sat = 0;
        for (index, tx) in block.txs.iter().enumerate() {
            let tx_index = index as u32;
            let tx_num = tx_num(height, tx_index);
            let broken = |rule| Err(ResolveError { height, tx_index, rule });
            let output_sat: u64 = tx.outputs.iter().map(|(value_sat, _)| value_sat).sum();
            let mut input_sat = 0;
            for (vin, spent) in tx.inputs.iter().enumerate() {
                let vin = vin as u32;
                let Some(coin) = self.coins.remove(spent) else {
                    return broken(BrokenRule::MissingPrevout { vin });
                };
                if coin.tx_num & 0xffff == 0 && height - coin.height() < 100 {
                    return broken(BrokenRule::ImmatureCoinbase { vin, coinbase_height: coin.height() });
                }
                input_sat += coin.value_sat;
                self.facts.inputs.insert((tx_num, vin), coin);
            }
            if index > 0 {
                if output_sat > input_sat {
                    return broken(BrokenRule::ValueCreated { input_sat, output_sat });
                }
                fees_sat += input_sat - output_sat;
                self.facts.fees.insert(tx_num, input_sat - output_sat);
            }
            for (vout, (value_sat, is_spendable)) in tx.outputs.iter().enumerate() {
                let coin = Coin { tx_num, value_sat: *value_sat, script_hash: tx.script_hash(vout) };
                let vout = vout as u32;
                if *is_spendable && let Some(old) = self.coins.insert((tx.txid(), vout), coin) {
                    self.facts.overwritten.push(Overwritten { tx_num: old.tx_num, vout, by_tx_num: tx_num });
                }
            }
        }
        let claimed_sat = block.txs[0].outputs.iter().map(|(value_sat, _)| value_sat).sum();
        let allowed_sat = Network::Regtest.subsidy_sat(height) + fees_sat;
        if claimed_sat > allowed_sat {
            let rule = BrokenRule::CoinbaseTooLarge { claimed_sat, allowed_sat };
            return Err(ResolveError { height, tx_index: 0, rule });
        }
        self.facts.blocks.insert(height, (fees_sat, allowed_sat - claimed_sat));
        Ok(())
    }
}

/// Makes random blocks that are valid on the model, but for some.
struct Miner {
    random: Random,
    height: u32,
    history: Vec<PlainTx>,
    /// One block in so many breaks a rule; 0 for none.
    broken_one_in: usize,
}

impl Miner {
    fn block(&mut self, model: &Model) -> PlainBlock {
        self.height += 1 + self.random.below(70) as u32;
        let breaks = self.broken_one_in > 0 && self.random.one_in(self.broken_one_in);
        let mut claims = vec![(1_000 + self.random.below(9) as u64, true)];
        if self.random.one_in(3) {
            claims.push((0, self.random.one_in(2)));
        }
        let mut coinbase = PlainTx { inputs: vec![], outputs: claims, nonce: self.random.next() };
        let earlier: Vec<&PlainTx> = self.history.iter().filter(|tx| tx.inputs.is_empty()).collect();
        if !earlier.is_empty() && self.random.one_in(4) {
            coinbase = earlier[self.random.below(earlier.len())].clone();
        }
        if breaks && self.random.one_in(4) {
            coinbase.nonce ^= 1;
            coinbase.outputs[0].0 = 51 * 100_000_000;
        }
        let mut block = PlainBlock { height: self.height, txs: vec![coinbase] };
        // The block's own outputs can be spent in it, so the transactions are tried on a copy.
        let mut trial = Model { coins: model.coins.clone(), facts: Facts::default() };
        let _ = trial.connect(&block);
        for _ in 0..self.random.below(6) {
            let tx = self.transaction(&trial, breaks);
            let mut tried = block.clone();
            tried.txs.push(tx);
            trial.coins.clone_from(&model.coins);
            if trial.connect(&tried).is_ok() || breaks {
                block = tried;
            }
        }
        self.history.extend(block.txs.iter().cloned());
        block
    }

    fn transaction(&mut self, trial: &Model, breaks: bool) -> PlainTx {
        // All inputs unspent again: a twin whose coinbase was repeated.
        let repeatable: Vec<&PlainTx> = self
            .history
            .iter()
            .filter(|tx| {
                !tx.inputs.is_empty() && tx.inputs.iter().all(|input| trial.coins.contains_key(input))
            })
            .collect();
        if !repeatable.is_empty() && self.random.one_in(2) {
            return repeatable[self.random.below(repeatable.len())].clone();
        }
        let coins: Vec<(&OutPoint, &Coin)> = trial.coins.iter().collect();
        let mut inputs: Vec<OutPoint> = Vec::new();
        let mut input_sat = 0;
        for _ in 0..1 + self.random.below(3) {
            if coins.is_empty() {
                break;
            }
            let (spent, coin) = coins[self.random.below(coins.len())];
            if !inputs.contains(spent) || breaks {
                inputs.push(*spent);
                input_sat += coin.value_sat;
            }
        }
        if inputs.is_empty() || breaks && self.random.one_in(3) {
            let known = self.history.get(self.random.below(self.history.len()));
            inputs.push(known.map_or(([1; 32], 0), |tx| (tx.txid(), self.random.below(2) as u32)));
        }
        let mut outputs: Vec<(u64, bool)> = Vec::new();
        let mut left_sat = input_sat;
        for _ in 0..1 + self.random.below(4) {
            let value_sat = self.random.below(left_sat as usize + 1) as u64;
            left_sat -= value_sat;
            outputs.push((value_sat, !self.random.one_in(6)));
        }
        if breaks && self.random.one_in(3) {
            outputs[0].0 += left_sat + 1;
        }
        PlainTx { inputs, outputs, nonce: self.random.next() }
    }
}

fn batch(blocks: &[PlainBlock], key: &FingerprintKey) -> Batch {
    let mut batch = Batch::default();
    for plain in blocks {
        let (mut input_count, mut output_count) = (0, 0);
        for tx in &plain.txs {
            let spent = if tx.inputs.is_empty() { vec![([0; 32], u32::MAX)] } else { tx.inputs.clone() };
            for (txid, vout) in &spent {
                batch.inputs.push(Input {
                    outpoint: key.fingerprint(txid, *vout),
                    sequence: 0,
                    prev_vout: *vout,
                    script_sig: Default::default(),
                    witness: Default::default(),
                    prevout: Coin::NONE,
                });
            }
            for (vout, (value_sat, is_spendable)) in tx.outputs.iter().enumerate() {
                batch.outputs.push(Output {
                    outpoint: key.fingerprint(&tx.txid(), vout as u32),
                    value_sat: *value_sat,
                    script_hash: tx.script_hash(vout),
                    script: Default::default(),
                    is_unspendable: !is_spendable,
                });
            }
            batch.txs.push(Tx {
                txid: tx.txid(),
                version: 1,
                locktime: 0,
                size: 0,
                weight: 0,
                input_count: spent.len() as u32,
                output_count: tx.outputs.len() as u32,
                fee_sat: 0,
            });
            input_count += spent.len() as u32;
            output_count += tx.outputs.len() as u32;
        }
        let header = crate::chain::header::Header::parse(&[0; 80]);
        batch.blocks.push(Block {
            height: plain.height,
            hash: [plain.height as u8; 32],
            header,
            size: 0,
            weight: 0,
            tx_count: plain.txs.len() as u32,
            input_count,
            output_count,
            fees_sat: 0,
            subsidy_sat: 0,
            unclaimed_sat: 0,
            median_time: 0,
            chainwork: 0,
        });
    }
    batch
}

/// Collects what a resolved batch knows already.
fn collect(batch: &Batch, facts: &mut Facts) {
    let (mut txs, mut inputs) = (batch.txs.iter(), batch.inputs.iter());
    for block in &batch.blocks {
        for index in 0..block.tx_count {
            let tx = txs.next().unwrap();
            let tx_num = tx_num(block.height, index);
            for (vin, input) in inputs.by_ref().take(tx.input_count as usize).enumerate() {
                if index > 0 && input.prevout != Coin::WAITING {
                    facts.inputs.insert((tx_num, vin as u32), input.prevout);
                }
            }
            if index > 0 && tx.fee_sat != WAITS {
                facts.fees.insert(tx_num, tx.fee_sat);
            }
        }
        assert_eq!(block.fees_sat == WAITS, block.unclaimed_sat == WAITS);
        if block.fees_sat != WAITS {
            facts.blocks.insert(block.height, (block.fees_sat, block.unclaimed_sat));
        }
    }
    facts.overwritten.extend(&batch.overwritten);
}

fn settle(set: &mut UtxoSet, facts: &mut Facts) -> Result<(), ConnectError> {
    let mut overwritten = Vec::new();
    let mut last = None;
    set.settle(&mut overwritten, |settled| {
        let place = match settled {
            Settled::Input { tx_num, vin, coin } => {
                assert_eq!(facts.inputs.insert((tx_num, vin), coin), None);
                (tx_num, u64::from(vin))
            }
            Settled::Transaction { tx_num, fee_sat } => {
                assert_eq!(facts.fees.insert(tx_num, fee_sat), None);
                (tx_num, u64::MAX)
            }
            Settled::Block { height, fees_sat, unclaimed_sat } => {
                assert_eq!(facts.blocks.insert(height, (fees_sat, unclaimed_sat)), None);
                (i64::from(height) << 16 | 0xffff, u64::MAX)
            }
        };
        assert!(last < Some(place), "chain order");
        last = Some(place);
        Ok::<_, ConnectError>(())
    })?;
    facts.overwritten.extend(overwritten);
    Ok(())
}

/// Every coin of a settled set.
fn coins_of(set: &mut UtxoSet) -> HashMap<Fingerprint, Coin> {
    let mut coins = HashMap::new();
    set.belt
        .table
        .for_each_shard(|entries| {
            coins.extend(entries.iter().map(|entry| (outpoint(entry), unpack(entry))));
            Ok::<_, ()>(())
        })
        .unwrap();
    let mut runs = set.runs.open_all().unwrap();
    while let Some(entry) = runs.next().unwrap() {
        assert_eq!(coins.insert(outpoint(&entry), unpack(&entry)), None, "a coin is in one place");
    }
    coins
}

#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    budgets: Vec<Option<u64>>,
    buckets: u64,
    limits: UtxoLimits,
    broken_one_in: usize,
    batch_count: usize,
}

fn plan() -> impl Strategy<Value = Plan> {
    let budget = prop_oneof![
        3 => Just(Some(0)),
        2 => Just(Some(80)),
        4 => (100..2_000_u64).prop_map(Some),
        1 => Just(Some(200_000)),
        1 => Just(None)
    ];
    let limits = (1..5_000_u64, 1..5_000_u64, 1..50_000_u64, 2..6_usize).prop_map(
        |(pending_bytes, sort_bytes, waiting_bytes, runs)| UtxoLimits {
            pending_bytes,
            sort_bytes,
            waiting_bytes,
            runs,
        },
    );
    let broken = prop_oneof![2 => Just(0), 1 => 8..40_usize];
    (any::<u64>(), prop::collection::vec(budget, 1..4), 1..12_u64, limits, broken, 1..25_usize).prop_map(
        |(seed, budgets, buckets, limits, broken_one_in, batch_count)| Plan {
            seed,
            budgets,
            buckets,
            limits,
            broken_one_in,
            batch_count,
        },
    )
}

/// The plain map at a checkpoint, to which blocks may be disconnected.
#[derive(Clone, Debug)]
struct Snapshot {
    height: u32,
    model: Model,
    facts: Facts,
}

/// What a plan came to, to see that the test tests.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    overwritten: usize,
    waited: u64,
    resumed: usize,
    disconnected: u32,
}

/// Runs one plan.
fn run(plan: &Plan) -> Result<Seen, TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(plan.seed | 1);
    let options = |random: &mut Random| UtxoOptions {
        dir: dir.path().join("coins"),
        cache_bytes_max: plan.budgets[random.below(plan.budgets.len())],
        buckets: plan.buckets,
        limits: plan.limits.clone(),
    };
    let mut set = UtxoSet::new(options(&mut random), FingerprintKey::random().unwrap());
    let mut miner = Miner {
        random: Random(plan.seed.rotate_left(17) | 1),
        height: 0,
        history: Vec::new(),
        broken_one_in: plan.broken_one_in,
    };
    let mut model = Model::default();
    let mut facts = Facts::default();
    let mut broken = None;
    let mut seen = Seen::default();
    let mut snapshots: Vec<Snapshot> = Vec::new();
    for number in 1..=plan.batch_count {
        let mut blocks = Vec::new();
        for _ in 0..1 + random.below(4) {
            let block = miner.block(&model);
            if broken.is_none() {
                broken = model.connect(&block).err();
            }
            blocks.push(block);
        }
        let mut batch = batch(&blocks, set.key());
        let is_segment_end = number == plan.batch_count || random.one_in(4);
        let outcome = resolve_batch(&mut batch, &mut set, Network::Regtest).and_then(|()| {
            collect(&batch, &mut facts);
            if is_segment_end || set.is_settlement_due(0) || random.one_in(6) {
                settle(&mut set, &mut facts)?;
            }
            Ok(())
        });
        match outcome {
            Err(ConnectError::Broken(error)) => {
                prop_assert_eq!(Some(error), broken);
                seen.overwritten = model.facts.overwritten.len();
                return Ok(seen);
            }
            outcome => outcome.unwrap(),
        }
        if !is_segment_end {
            continue;
        }
        prop_assert_eq!(&broken, &None, "an error shows at the segment's end at the latest");
        let (height, hash) = (miner.height, [miner.height as u8; 32]);
        set.checkpoint(height, &hash).unwrap();
        if random.one_in(2) {
            set.forget_before(height - random.below(2) as u32).unwrap();
        }
        snapshots.push(Snapshot { height, model: model.clone(), facts: facts.clone() });
        snapshots.retain(|snapshot| set.kept.iter().any(|kept| kept.height == snapshot.height));
        if random.one_in(2) {
            // From the newest checkpoint, or from an earlier one: the blocks above it are disconnected.
            snapshots.truncate(1 + random.below(snapshots.len()));
            let to = snapshots.last().expect("the newest is kept").clone();
            seen.waited += set.take_figures().waited;
            drop(set);
            set = UtxoSet::resume(&options(&mut random), |height, hash| {
                (height, *hash) == (to.height, [to.height as u8; 32])
            })
            .unwrap()
            .expect("it is whole");
            seen.resumed += 1;
            seen.disconnected += height - to.height;
            (miner.height, model, facts) = (to.height, to.model, to.facts);
        }
    }
    seen.waited += set.take_figures().waited;
    let by_place = |overwritten: &Overwritten| (overwritten.by_tx_num, overwritten.vout);
    facts.overwritten.sort_by_key(by_place);
    model.facts.overwritten.sort_by_key(by_place);
    prop_assert_eq!(&facts, &model.facts);
    let left: HashMap<_, _> =
        model.coins.iter().map(|((txid, vout), coin)| (set.key().fingerprint(txid, *vout), *coin)).collect();
    prop_assert_eq!(set.coin_count(), left.len() as u64);
    prop_assert_eq!(coins_of(&mut set), left);
    seen.overwritten = model.facts.overwritten.len();
    Ok(seen)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_set_agrees_with_a_plain_map(plan in plan()) {
        run(&plan)?;
    }
}

#[test]
fn random_chains_have_twins_waiting_spends_resumes_and_disconnects() {
    let mut all = Seen::default();
    for seed in 1..=20_u64 {
        let plan = Plan {
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            budgets: vec![Some(0), Some(300)],
            buckets: 3,
            limits: UtxoLimits { pending_bytes: 400, sort_bytes: 100, waiting_bytes: 20_000, runs: 4 },
            broken_one_in: 0,
            batch_count: 20,
        };
        let seen = run(&plan).unwrap();
        all.overwritten += seen.overwritten;
        all.waited += seen.waited;
        all.resumed += seen.resumed;
        all.disconnected += seen.disconnected;
    }
    assert!(all.overwritten > 50 && all.waited > 1_000, "{all:?}");
    assert!(all.resumed > 20 && all.disconnected > 20, "{all:?}");
}

#[test]
fn a_run_that_is_damaged_meanwhile_is_noticed_when_it_is_merged() {
    let dir = tempfile::tempdir().unwrap();
    let limits = UtxoLimits { pending_bytes: 40, ..UtxoLimits::default() };
    let options = UtxoOptions { dir: dir.path().join("coins"), cache_bytes_max: Some(0), buckets: 1, limits };
    let coinbase = PlainTx { inputs: vec![], outputs: vec![(5_000, true)], nonce: 1 };
    let spend = |nonce| PlainTx { inputs: vec![(coinbase.txid(), 0)], outputs: vec![(4_000, true)], nonce };
    let empty = PlainTx { nonce: 2, ..coinbase.clone() };
    let blocks = [
        PlainBlock { height: 1, txs: vec![coinbase.clone()] },
        PlainBlock { height: 101, txs: vec![empty, spend(3)] },
    ];
    for is_damaged in [false, true] {
        let mut set = UtxoSet::new(options.clone(), FingerprintKey::random().unwrap());
        let mut batch = batch(&blocks, set.key());
        resolve_batch(&mut batch, &mut set, Network::Regtest).unwrap();
        assert!(set.is_waiting());
        let run = std::fs::read_dir(&options.dir).unwrap().next().unwrap().unwrap().path();
        if is_damaged {
            let mut bytes = std::fs::read(&run).unwrap();
            bytes[20] ^= 1;
            std::fs::write(&run, bytes).unwrap();
        }
        let mut facts = Facts::default();
        let outcome = settle(&mut set, &mut facts);
        if is_damaged {
            assert!(
                matches!(outcome, Err(ConnectError::Files(CoinFileError::Damaged { .. }))),
                "{outcome:?}"
            );
        } else {
            outcome.unwrap();
            assert_eq!(facts.fees[&tx_num(101, 1)], 1_000);
        }
        drop(set);
        remove_all(&options).unwrap();
        assert_eq!(std::fs::read_dir(&options.dir).unwrap().count(), 0);
    }
}

#[test]
fn buffers_keep_to_what_the_plan_gives_them() {
    for bytes in [2_u64 << 20, 4 << 20, 32 << 20, 64 << 20, 256 << 20] {
        let limits = UtxoLimits::within(bytes);
        let most = limits.buffer_bytes_max();
        assert!(most <= bytes && most > bytes - 16, "{bytes}: {limits:?} takes {most}");
    }
    let limits = UtxoLimits::default();
    assert_eq!((limits.pending_bytes >> 20, limits.sort_bytes >> 20, limits.runs), (8, 16, 64));
    assert_eq!(UtxoLimits::within(0).pending_bytes, 0);
}
