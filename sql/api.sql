-- Schema api: what people and backends read. Dropped and recreated at every upgrade, after functions.sql, so nothing of
-- one's own may be put here.
--
-- Every object shows one picture: what lies above the tip in the reader's own snapshot is left out, because rows of a
-- segment attached since may be visible already. That filter is on the height, not on tx_num: next to a reader's own
-- range of tx_num the planner would take the pair for 0.5 % of the table.
--
-- A column costs only where it is asked for: looked-up columns are scalar subqueries, or left joins that the planner
-- removes. A filter on a derived column (height, txid, address, type) reads everything; filter by tx_num
-- (chain.first_tx_num gives it for a height) or begin with one of the functions, which use the indexes.

drop schema if exists api cascade;
create schema api;
comment on schema api is 'Views and look-up functions for people and API backends; recreated at every upgrade.';

-- Views

create view api.blocks as
select b.height,
    chain.hash_hex(b.hash) as hash,
    chain.hash_hex(p.hash) as previous_hash,
    b.version,
    chain.hash_hex(b.merkle_root) as merkle_root,
    b.time,
    b.median_time,
    lpad(to_hex(b.bits), 8, '0') as bits,
    b.nonce,
    chain.difficulty(b.bits) as difficulty,
    b.size,
    b.weight,
    b.tx_count,
    b.input_count,
    b.output_count,
    b.fees,
    b.subsidy,
    b.unclaimed,
    encode(b.chainwork, 'hex') as chainwork,
    (select chain.tip_height()) - b.height + 1 as confirmations
from chain.blocks b
left join chain.blocks p on p.height = b.height - 1;
comment on view api.blocks is 'The blocks of the active chain. By height: api.blocks where height = N, or api.block(N); by hash: api.block_by_hash.';
comment on column api.blocks.height is 'Height, 0 for genesis.';
comment on column api.blocks.hash is 'Block hash, the hex that people know.';
comment on column api.blocks.previous_hash is 'Hash of the block before, hex; NULL for genesis.';
comment on column api.blocks.version is 'Version, signed 32 bits.';
comment on column api.blocks.merkle_root is 'Merkle root, the hex that people know.';
comment on column api.blocks.time is 'Time in the header, set by the miner; it may go backwards.';
comment on column api.blocks.median_time is 'Median of the times of this block and its ten ancestors.';
comment on column api.blocks.bits is 'Compact target, 8 hexadecimal digits as Bitcoin Core prints it.';
comment on column api.blocks.nonce is 'Nonce, unsigned 32 bits.';
comment on column api.blocks.difficulty is 'How many times harder than the easiest mainnet target.';
comment on column api.blocks.size is 'Serialised size with witness, bytes.';
comment on column api.blocks.weight is 'Weight (BIP141), weight units.';
comment on column api.blocks.tx_count is 'Number of transactions, the coinbase included.';
comment on column api.blocks.input_count is 'Number of inputs, the coinbase''s included.';
comment on column api.blocks.output_count is 'Number of outputs.';
comment on column api.blocks.fees is 'Sum of the fees of all transactions, satoshis.';
comment on column api.blocks.subsidy is 'New coins that the block may create, satoshis.';
comment on column api.blocks.unclaimed is 'Subsidy and fees that the coinbase did not claim, satoshis.';
comment on column api.blocks.chainwork is 'Work of the chain up to this block, hex as Bitcoin Core prints it.';
comment on column api.blocks.confirmations is 'Blocks from this one to the tip, both included.';

create view api.transactions as
select t.height,
    (t.tx_num & 65535)::integer as tx_index,
    chain.txid_hex(t.txid) as txid,
    t.tx_num,
    (t.tx_num & 65535) = 0 as is_coinbase,
    t.fee,
    round(t.fee * 4::numeric / t.weight, 3) as fee_rate,
    t.size,
    (t.weight + 3) / 4 as vsize,
    t.weight,
    t.version,
    t.locktime,
    t.input_count,
    t.output_count,
    chain.hash_hex(b.hash) as block_hash,
    b.time as block_time
from chain.transactions t
left join chain.blocks b on b.height = t.height
where chain.height(t.tx_num) <= (select chain.tip_height());
comment on view api.transactions is 'The transactions of the active chain. By txid: api.transaction(txid); by height: tx_num between chain.first_tx_num(first) and chain.first_tx_num(last + 1) - 1.';
comment on column api.transactions.height is 'Height of its block.';
comment on column api.transactions.tx_index is 'Place in its block, 0 for the coinbase.';
comment on column api.transactions.txid is 'Transaction id, the hex that people know. Two coinbases stand twice in the chain (BIP30).';
comment on column api.transactions.tx_num is 'height * 65536 + tx_index: unique, in chain order.';
comment on column api.transactions.is_coinbase is 'Whether it is the coinbase of its block.';
comment on column api.transactions.fee is 'Fee, satoshis; NULL for a coinbase.';
comment on column api.transactions.fee_rate is 'Fee per virtual byte (fee * 4 / weight), satoshis with 3 decimals; NULL for a coinbase.';
comment on column api.transactions.size is 'Serialised size with witness, bytes.';
comment on column api.transactions.vsize is 'Virtual size: weight / 4 rounded up.';
comment on column api.transactions.weight is 'Weight (BIP141), weight units.';
comment on column api.transactions.version is 'Version, unsigned 32 bits.';
comment on column api.transactions.locktime is 'Lock time, unsigned 32 bits: a height below 500,000,000, seconds since 1970 from there.';
comment on column api.transactions.input_count is 'Number of inputs; 1 for a coinbase.';
comment on column api.transactions.output_count is 'Number of outputs.';
comment on column api.transactions.block_hash is 'Hash of its block, the hex that people know.';
comment on column api.transactions.block_time is 'Time in the header of its block.';

create view api.outputs as
select chain.height(o.tx_num) as height,
    (o.tx_num & 65535)::integer as tx_index,
    (select chain.txid_hex(t.txid) from chain.transactions t where t.tx_num = o.tx_num) as txid,
    o.tx_num,
    o.vout,
    o.value,
    chain.script_type(o.script) as type,
    chain.script_address(o.script, (select chain.network())) as address,
    o.script_hash,
    o.script,
    (o.tx_num & 65535) = 0 as is_coinbase,
    o.tx_num = 0 or substr(o.script, 1, 1) = '\x6a'::bytea or octet_length(o.script) > 10000 as is_unspendable,
    (o.tx_num, o.vout) in (select w.tx_num, w.vout from chain.overwritten w) as is_overwritten,
    s.tx_num as spent_by_tx_num,
    (select chain.txid_hex(t.txid) from chain.transactions t where t.tx_num = s.tx_num) as spent_by_txid,
    s.vin as spent_by_vin
from chain.outputs o
-- An aggregate, so that it is known to be one row and is left out where nothing of it is asked for.
left join lateral (
    select max(i.tx_num) as tx_num, max(i.vin) as vin
    from chain.inputs i
    where i.prev_tx_num = o.tx_num and i.prev_vout = o.vout and i.tx_num >= o.tx_num
      and chain.height(i.tx_num) <= (select chain.tip_height())) s on true
where chain.height(o.tx_num) <= (select chain.tip_height());
comment on view api.outputs is 'The outputs of the active chain. By transaction: tx_num = N; by height: tx_num between chain.first_tx_num(first) and chain.first_tx_num(last + 1) - 1; by address: api.address_history, api.address_utxos. The unspent ones alone: chain.utxos.';
comment on column api.outputs.height is 'Height of its block.';
comment on column api.outputs.tx_index is 'Place of its transaction in the block, 0 for the coinbase.';
comment on column api.outputs.txid is 'Its transaction, the hex that people know.';
comment on column api.outputs.tx_num is 'Its transaction.';
comment on column api.outputs.vout is 'Index in its transaction, from 0.';
comment on column api.outputs.value is 'Amount, satoshis.';
comment on column api.outputs.type is 'Type of the script under Bitcoin Core''s name: chain.script_type(script).';
comment on column api.outputs.address is 'Address on the network of this database; NULL where Bitcoin Core gives none.';
comment on column api.outputs.script_hash is 'First 16 bytes of sha256(script), in order; indexed in chain.outputs.';
comment on column api.outputs.script is 'scriptPubKey, exact bytes.';
comment on column api.outputs.is_coinbase is 'Whether its transaction is a coinbase.';
comment on column api.outputs.is_unspendable is 'Whether nobody can ever spend it: the genesis output, a script that begins with OP_RETURN or exceeds 10,000 bytes.';
comment on column api.outputs.is_overwritten is 'Whether a later coinbase with the same txid replaced it unspent (BIP30); nobody can spend it since.';
comment on column api.outputs.spent_by_tx_num is 'The transaction that spends it; NULL where it is not spent.';
comment on column api.outputs.spent_by_txid is 'The transaction that spends it, the hex that people know.';
comment on column api.outputs.spent_by_vin is 'Index of the input that spends it.';

create view api.inputs as
select chain.height(i.tx_num) as height,
    (i.tx_num & 65535)::integer as tx_index,
    (select chain.txid_hex(t.txid) from chain.transactions t where t.tx_num = i.tx_num) as txid,
    i.tx_num,
    i.vin,
    i.prev_tx_num is null as is_coinbase,
    chain.height(i.prev_tx_num) as prev_height,
    (select chain.txid_hex(t.txid) from chain.transactions t where t.tx_num = i.prev_tx_num) as prev_txid,
    i.prev_tx_num,
    i.prev_vout,
    i.value,
    chain.script_type(p.script) as type,
    chain.script_address(p.script, (select chain.network())) as address,
    i.script_hash,
    i.sequence,
    i.script_sig,
    chain.witness_items(i.witness) as witness
from chain.inputs i
-- As in api.outputs: one row, and left out where nothing of it is asked for.
left join lateral (
    select (array_agg(o.script))[1] as script
    from chain.outputs o
    where o.tx_num = i.prev_tx_num and o.vout = i.prev_vout) p on true
where chain.height(i.tx_num) <= (select chain.tip_height());
comment on view api.inputs is 'The inputs of the active chain, each with the output it spends. By transaction: tx_num = N; by height: tx_num between chain.first_tx_num(first) and chain.first_tx_num(last + 1) - 1; by address: api.address_history.';
comment on column api.inputs.height is 'Height of the block that spends.';
comment on column api.inputs.tx_index is 'Place of the spending transaction in its block, 0 for the coinbase.';
comment on column api.inputs.txid is 'The spending transaction, the hex that people know.';
comment on column api.inputs.tx_num is 'The spending transaction.';
comment on column api.inputs.vin is 'Index in the spending transaction, from 0.';
comment on column api.inputs.is_coinbase is 'Whether it is the input of a coinbase, which spends no output.';
comment on column api.inputs.prev_height is 'Height of the output spent; NULL for a coinbase.';
comment on column api.inputs.prev_txid is 'Transaction of the output spent, the hex that people know; NULL for a coinbase.';
comment on column api.inputs.prev_tx_num is 'Transaction of the output spent; NULL for a coinbase.';
comment on column api.inputs.prev_vout is 'Index of the output spent; NULL for a coinbase.';
comment on column api.inputs.value is 'Amount of the output spent, satoshis; NULL for a coinbase.';
comment on column api.inputs.type is 'Type of the script of the output spent, under Bitcoin Core''s name; NULL for a coinbase.';
comment on column api.inputs.address is 'Address of the output spent; NULL for a coinbase and where Bitcoin Core gives none.';
comment on column api.inputs.script_hash is 'script_hash of the output spent; NULL for a coinbase; indexed in chain.inputs.';
comment on column api.inputs.sequence is 'Sequence, unsigned 32 bits.';
comment on column api.inputs.script_sig is 'scriptSig, exact bytes; NULL where it was not stored.';
comment on column api.inputs.witness is 'Items of the witness, bottom of the stack first; no items where the input has none, NULL where it was not stored.';

-- Look-ups: every one begins at an index (api.largest_fees aside, which reads the heights it is given).

create function api.block(height integer) returns setof api.blocks
language sql stable parallel safe
begin atomic
    select b.* from api.blocks b where b.height = $1;
end;
comment on function api.block(integer) is 'The block at a height; no row above the tip.';

create function api.block_by_hash(hash text) returns setof api.blocks
language sql stable parallel safe
begin atomic
    select b.* from api.blocks b
    where b.height = (select c.height from chain.blocks c where c.hash = chain.hex_hash($1));
end;
comment on function api.block_by_hash(text) is 'The block of the active chain with this hash (hex); no row where there is none.';

create function api.transaction(txid text) returns setof api.transactions
language sql stable parallel safe rows 1
begin atomic
    select v.* from api.transactions v
    where v.tx_num = any (array(select t.tx_num from chain.transactions t where t.txid = chain.hex_txid($1)))
    order by v.tx_num desc;
end;
comment on function api.transaction(text) is 'The transaction with this txid (hex); of two that share it (BIP30), the later first.';

create function api.address_balance(address text)
returns table (
    balance bigint, received bigint, spent bigint, output_count bigint, input_count bigint, utxo_count bigint)
language sql stable parallel safe rows 1
begin atomic
    select c.received - d.spent, c.received, d.spent, c.output_count, d.input_count, c.output_count - d.input_count
    from (
        select coalesce(sum(o.value), 0)::bigint as received, count(*) as output_count
        from chain.outputs o
        where o.script_hash = (select chain.address_script_hash($1))
          and chain.height(o.tx_num) <= (select chain.tip_height())
          and o.tx_num <> 0
          and (o.tx_num, o.vout) not in (select w.tx_num, w.vout from chain.overwritten w)) c
    cross join (
        select coalesce(sum(i.value), 0)::bigint as spent, count(*) as input_count
        from chain.inputs i
        where i.script_hash = (select chain.address_script_hash($1))
          and chain.height(i.tx_num) <= (select chain.tip_height())) d;
end;
comment on function api.address_balance(text) is 'Sums of an address at the tip: balance = received - spent (satoshis), and the numbers of outputs that pay it, inputs that spend from it, and unspent outputs. Overwritten outputs (BIP30) and the genesis output, which nobody can spend, are left out.';

create function api.address_history(address text, max_rows integer default 100, before_tx_num bigint default null)
returns table (
    tx_num bigint, height integer, tx_index integer, txid text, block_time timestamptz, received bigint, spent bigint,
    change bigint)
language sql stable parallel safe
begin atomic
    -- From each transaction to the one before it, by two probes of the indexes: a page costs the same whether the
    -- address has a hundred rows or ten million.
    with recursive page (script_hash, tx_num, row) as (
        select chain.address_script_hash($1), least($3, chain.first_tx_num(chain.tip_height() + 1)), 0
        union all
        select p.script_hash,
            greatest(
                (select o.tx_num from chain.outputs o
                 where o.script_hash = p.script_hash and o.tx_num < p.tx_num order by o.tx_num desc limit 1),
                (select i.tx_num from chain.inputs i
                 where i.script_hash = p.script_hash and i.tx_num < p.tx_num order by i.tx_num desc limit 1)),
            p.row + 1
        from page p
        where p.tx_num is not null and p.row < coalesce($2, 2147483647))
    select h.tx_num, chain.height(h.tx_num), (h.tx_num & 65535)::integer,
        (select chain.txid_hex(t.txid) from chain.transactions t where t.tx_num = h.tx_num),
        (select b.time from chain.blocks b where b.height = chain.height(h.tx_num)),
        c.received, d.spent, c.received - d.spent
    from page h
    cross join lateral (
        select coalesce(sum(o.value), 0)::bigint as received from chain.outputs o
        where o.script_hash = h.script_hash and o.tx_num = h.tx_num) c
    cross join lateral (
        select coalesce(sum(i.value), 0)::bigint as spent from chain.inputs i
        where i.script_hash = h.script_hash and i.tx_num = h.tx_num) d
    where h.row > 0 and h.tx_num is not null
    order by h.tx_num desc;
end;
comment on function api.address_history(text, integer, bigint) is 'The transactions that pay an address or spend from it, newest first, with what it received, spent, and the change of its balance (satoshis). Next page: before_tx_num = the last tx_num of this one.';

create function api.address_utxos(address text)
returns table (
    tx_num bigint, height integer, txid text, vout integer, value bigint, is_coinbase boolean, confirmations integer)
language sql stable parallel safe
begin atomic
    select o.tx_num, chain.height(o.tx_num),
        (select chain.txid_hex(t.txid) from chain.transactions t where t.tx_num = o.tx_num),
        o.vout, o.value, (o.tx_num & 65535) = 0, (select chain.tip_height()) - chain.height(o.tx_num) + 1
    from chain.outputs o
    where o.script_hash = (select chain.address_script_hash($1))
      and chain.height(o.tx_num) <= (select chain.tip_height())
      and o.tx_num <> 0
      -- The spender carries the script_hash too: one range of its index, and not a look-up for every output.
      and not exists (
          select from chain.inputs i
          where i.prev_tx_num = o.tx_num and i.prev_vout = o.vout and i.tx_num >= o.tx_num
            and i.script_hash = (select chain.address_script_hash($1))
            and chain.height(i.tx_num) <= (select chain.tip_height()))
      and (o.tx_num, o.vout) not in (select w.tx_num, w.vout from chain.overwritten w)
    order by o.tx_num desc, o.vout;
end;
comment on function api.address_utxos(text) is 'The unspent outputs of an address at the tip, newest first; values in satoshis.';

create function api.largest_fees(
    max_rows integer default 10, height_first integer default 0, height_last integer default null)
returns setof api.transactions
language sql stable parallel safe
begin atomic
    select v.* from api.transactions v
    where v.tx_num = any (array(
        select t.tx_num from chain.transactions t
        where t.fee is not null and t.tx_num >= chain.first_tx_num($2)
          and t.tx_num < coalesce(chain.first_tx_num($3) + 65536, 9223372036854775807)
          and chain.height(t.tx_num) <= (select chain.tip_height())
        order by t.fee desc, t.tx_num
        limit $1))
    order by v.fee desc, v.tx_num;
end;
comment on function api.largest_fees(integer, integer, integer) is 'The transactions that paid the largest fees, between two heights (both included; without the last one, up to the tip). Reads every transaction between them.';
